import shutil

import pytest
import torch

from rnnorm.experiments.data.text.corpora import ENDS, load_corpus
from rnnorm.experiments.data.text.windows import Window
from rnnorm.experiments.tasks.language.model import LanguageModel
from rnnorm.experiments.tasks.language.writing import continuation
from rnnorm.experiments.trained.text import write
from rnnorm.experiments.training.checkpoint import WholeFiles, read_checkpoint
from rnnorm.experiments.training.fit import fit

SENTENCES = "glinskis2017/separate"
WORDS = "laurent2015/ptb-word-small-bn"
SYMBOLS = 7


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory, published):
    """By recipe, the checkpoint of a short training on a few sentences."""
    folder, made = tmp_path_factory.mktemp("written"), {}
    for name, extra in ((SENTENCES, []), (WORDS, ["--data.init_args.length=5"])):
        size = len(load_corpus("ptb-word" if "word" in name else "ptb-char", published).vocabulary)
        overrides = [
            "--trainer.accelerator=cpu",
            "--trainer.max_epochs=1",
            "--trainer.log_every_n_steps=1",
            f"--model.init_args.vocabulary_size={size}",
            "--model.init_args.hidden_size=8",
            "--data.init_args.batch_size=20",
            "--data.init_args.eval_batch_size=4",
            *extra,
        ]
        run = fit(name, data_dir=published, run_dir=folder / name, overrides=overrides)
        made[name] = run.best_checkpoint
    return made


def model():
    """A model with population statistics of 6 steps."""
    torch.manual_seed(0)
    made = LanguageModel(SYMBOLS, norm="batch", norm_options={"gamma": 1.0}, hidden_size=5)
    x = torch.randint(SYMBOLS, (6, 8))
    made.statistics_step(Window(x, x, fresh=True, kept=False, step=0))
    return made


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


@torch.no_grad()
def test_the_state_and_the_step_go_on():
    made = model()
    beginning = torch.tensor([1, 2, 3])
    written = continuation(made, beginning, None, 0, 10, generator())
    # the most probable symbol behind each, read in one pass from the first step on
    whole = torch.cat([beginning, torch.tensor(written)])
    scores = made(whole[:-1].unsqueeze(1))[0].squeeze(1)
    assert scores[2:].argmax(1).tolist() == written
    later = continuation(model(), whole[:7], None, 0, 6, generator())
    assert later == written[4:]


def test_it_ends_with_the_end_symbol_or_after_the_most_symbols():
    made = model()
    lengths = set()
    for seed in range(30):
        written = continuation(made, torch.tensor([1]), 0, 1.0, 9, generator(seed))
        assert 0 not in written[:-1]
        assert written[-1] == 0 or len(written) == 9
        lengths.add(len(written))
    assert len(lengths) > 3


def test_temperature():
    made = model()

    def drawn(temperature, seed):
        return continuation(made, torch.tensor([1]), None, temperature, 12, generator(seed))

    assert drawn(0, 1) == drawn(0, 2) == drawn(1e-300, 3)
    assert drawn(1.0, 1) == drawn(1.0, 1) != drawn(1.0, 2)
    assert len(set(drawn(float("inf"), 1))) > 3


@pytest.mark.parametrize("name", [SENTENCES, WORDS])
def test_a_seed_has_its_sentences(checkpoints, name):
    one = write(name, checkpoints[name], ["the cat", "a"], sentences=2, max_length=30)
    assert one == write(name, checkpoints[name], ["the cat", "a"], sentences=2, max_length=30)
    assert one != write(name, checkpoints[name], ["the cat", "a"], sentences=2, seed=2)
    assert [text.startswith(("the cat", "a")[i // 2]) for i, text in enumerate(one)] == [True] * 4
    # the first does not depend on how many there are
    assert write(name, checkpoints[name], ["the cat"], max_length=30) == one[:1]


def test_it_is_readable(checkpoints):
    (text,) = write(SENTENCES, checkpoints[SENTENCES], ["the cat"], max_length=300)
    assert not {"_", "\n"} & set(text)
    (text,) = write(WORDS, checkpoints[WORDS], ["the  cat"], max_length=300)
    assert text.startswith("the cat")
    assert ENDS["ptb-word"] not in text


@pytest.mark.parametrize(
    ("name", "beginning", "what"),
    [
        (SENTENCES, "the fish", "beginning 'the fish' has the character 'f' in line 1, column 5"),
        (WORDS, "the fish", "beginning 'the fish' has the word 'fish' in line 1, column 5"),
        (SENTENCES, "", "a beginning must have a symbol, got ''"),
        (WORDS, " ", "a beginning must have a symbol, got ' '"),
        (SENTENCES, "a\udcff", r"a beginning must be text in UTF-8, got 'a\\udcff'"),
    ],
)
def test_a_beginning_that_cannot_be_read(checkpoints, name, beginning, what):
    with pytest.raises(ValueError, match=what):
        write(name, checkpoints[name], ["the", beginning])


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"temperature": -0.1}, "temperature must be at least 0, got -0.1"),
        ({"temperature": float("nan")}, "temperature must be at least 0, got nan"),
        ({"sentences": 0}, "sentences must be at least 1, got 0"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
    ],
)
def test_numbers_out_of_range(checkpoints, arguments, what):
    with pytest.raises(ValueError, match=what):
        write(SENTENCES, checkpoints[SENTENCES], **arguments)


def test_a_model_of_images_cannot_write(tmp_path, tiny):
    overrides = [*tiny, "--trainer.max_epochs=1"]
    run = fit("demo/digits-lstm", run_dir=tmp_path / "run", overrides=overrides)
    with pytest.raises(ValueError, match="model must be one of characters or words, that of demo/"):
        write("demo/digits-lstm", run.last_checkpoint)


def test_a_checkpoint_without_a_vocabulary_is_refused(checkpoints, tmp_path):
    run = shutil.copytree(checkpoints[SENTENCES].parents[1], tmp_path / "run")
    path = run / "checkpoints" / "best.ckpt"
    state = read_checkpoint(path)
    for kept in ({}, {"SentenceData": {}}, {"SentenceData": [1]}):
        WholeFiles().save_checkpoint(
            {key: value for key, value in state.items() if key != "SentenceData"} | kept, path
        )
        with pytest.raises(
            ValueError, match="is not a checkpoint of SentenceData: it has no vocab"
        ):
            write(run)


def test_the_command(checkpoints, capsys):
    from rnnorm.experiments.commands.cli import main

    checkpoint, begins = checkpoints[SENTENCES], ["the cat", "a"]
    command = ["write", SENTENCES, "--ckpt", str(checkpoint), "--max-length", "20"]
    assert main([*command, "--begin", *begins, "--sentences", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = write(
        SENTENCES, checkpoints[SENTENCES], ["the cat", "a"], sentences=2, max_length=20
    )
    assert lines == expected
    # the run folder is enough
    run = str(checkpoint.parent.parent)
    assert main(["write", run, *command[4:], "--begin", *begins, "--sentences", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == expected
    assert main([*command, "--begin", "é"]) == 1
    assert "rnnorm write: the beginning 'é' has the character 'é'" in capsys.readouterr().err
