"""Recipes of sentences: the data they read, what they differ in, and from end to end."""

import random
import re

import pytest
import torch
from interruption import assert_resumes_alike
from torch.nn.functional import cross_entropy

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.data.text.corpora import load_corpus
from rnnorm.experiments.data.text.sentences import Sentences
from rnnorm.experiments.recipe.recipe import read_recipe, recipe_names
from rnnorm.experiments.tasks.language.model import LanguageModel
from rnnorm.experiments.tasks.sentences import SentenceData
from rnnorm.experiments.training.checkpoint import read_checkpoint
from rnnorm.experiments.training.finite import DivergedError
from rnnorm.experiments.training.fit import fit

NAMES = [name for name in recipe_names() if name.startswith("glinskis2017/")]
JOINT = {
    "joint-shared": ("shared", None, False, 1.86),
    "joint-per-step": ("per_step", None, False, None),
    "joint-exponential-shared": ("shared", 0.1, False, 1.73),
    "joint-exponential-per-step": ("per_step", 0.1, False, None),
    "joint-folded": ("per_step", None, True, None),
    "joint-folded-exponential-shared": ("shared", 0.1, True, 1.25297),
}
SYMBOLS = 7


def data(folder, **arguments):
    module = SentenceData(data_dir=str(folder), **arguments)
    module.setup()
    return module


def model(norm, **arguments):
    torch.manual_seed(0)
    return LanguageModel(SYMBOLS, norm=norm, hidden_size=5, **arguments)


def minibatch():
    """Sentences of 3 to 8 symbols."""
    torch.manual_seed(1)
    loader = Sentences([torch.randint(SYMBOLS, (n,)) for n in (5, 8, 3, 8, 4, 6)], 6, seed=1)
    return next(iter(loader))


@pytest.mark.parametrize("norm", [None, "batch", "layer", "joint"])
def test_the_loss_is_that_of_each_sentence_without_its_padding(norm):
    made, window = model(norm), minibatch()
    made.statistics_step(window)
    made.eval()
    losses, symbols = 0.0, 0
    for i, n in enumerate(window.lengths.tolist()):
        scores = made(window.x[:n, i : i + 1])[0].squeeze(1)
        losses += cross_entropy(scores, window.y[:n, i], reduction="sum")
        symbols += n
    assert symbols == window.predictions
    torch.testing.assert_close(made._loss("val", window), losses / symbols)


@pytest.mark.parametrize("norm", [None, "batch", "layer", "joint"])
def test_what_stands_in_the_padding_changes_nothing(norm):
    losses, gradients = [], []
    for fill in (0, 5):
        made, window = model(norm), minibatch()
        padded = torch.arange(len(window.x)).unsqueeze(1) >= window.lengths
        loss = made._loss("train", window._replace(x=window.x.masked_fill(padded, fill)))
        loss.backward()
        losses.append(loss)
        gradients.append([p.grad for p in made.parameters()])
        assert padded.any()
    assert torch.equal(*losses)
    assert all(torch.equal(one, two) for one, two in zip(*gradients, strict=True))


def test_a_summed_loss_is_that_of_all_symbols_over_the_rows(monkeypatch):
    made, window = model(None, reduction="sum"), minibatch()
    monkeypatch.setattr(made, "log", lambda *_, **__: None)
    mean = made._loss("train", window)
    rows = window.x.size(1)
    torch.testing.assert_close(made.training_step(window, 0), mean * window.predictions / rows)


def test_training_alone_is_folded(sentences):
    plain, folded = (data(sentences, folded=f) for f in (False, True))
    assert len(plain.loaders["train"].sentences) == 60
    assert len(folded.loaders["train"].sentences) == 30
    for name in ("val", "test"):
        kept = [module.loaders[name].sentences for module in (plain, folded)]
        assert [s.tolist() for s in kept[0]] == [s.tolist() for s in kept[1]]
        assert kept[0]


def test_sizes_are_those_of_sentences(sentences):
    module = data(sentences, train_size=7, eval_size=3, folded=True)
    assert len(module.loaders["train"].sentences) == 4
    assert [len(module.loaders[name].sentences) for name in ("val", "test")] == [3, 3]
    assert len(module.vocabulary) == len(load_corpus("ptb-char", sentences).vocabulary)


def test_sentences_of_words_and_lines_of_any_text(sentences, tmp_path):
    words = data(sentences, dataset="ptb-word")
    end = words.vocabulary.number("<eos>")
    assert all(int(s[-1]) == end for s in words.loaders["train"].sentences)
    (tmp_path / "own.txt").write_text("größer\n" * 100, encoding="utf-8")
    lines = data(tmp_path, dataset="text", file="own.txt")
    assert [len(loader.sentences) for loader in lines.loaders.values()] == [90, 5, 5]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"dataset": "text8"}, "dataset must be one of ptb-char, ptb-word, text, got 'text8'"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"eval_size": 0}, "eval_size must be at least 1, got 0"),
    ],
)
def test_bad_data_arguments(sentences, arguments, what):
    with pytest.raises(ValueError, match=what):
        data(sentences, **arguments)


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_a_part_without_a_sentence_is_refused(sentences, part):
    (sentences / f"ptb.char.{part}.txt").write_text("\n \n ")
    for other in {"train", "valid", "test"} - {part}:
        (sentences / f"ptb.char.{other}.txt").write_text("\n" if part == "train" else "a b \n ")
    with pytest.raises(ValueError, match=r"ptb\.char\.\w+\.txt has no sentence"):
        data(sentences)


def test_recipes_differ_in_the_variant_alone():
    # those that change one thing of separate are compared with it in test_recipe_differences
    own = [name for name in NAMES if "/separate-" not in name]
    configs = {name.split("/")[1]: read_recipe(name).config for name in own}
    assert configs.keys() == {"baseline", "carry", "separate", *JOINT}
    for config in configs.values():
        config["trainer"].pop("callbacks", None)
        for key in ("norm", "norm_options"):
            config["model"]["init_args"].pop(key, None)
        read = config["data"]["init_args"]
        # as many sentences in a minibatch
        assert read["batch_size"] == (32 if read.pop("folded") else 64)
        read.pop("batch_size")
        assert config == configs["baseline"]


@pytest.mark.parametrize(("name", "expected"), JOINT.items())
def test_the_sources_variants(name, expected):
    recipe = read_recipe(f"glinskis2017/{name}")
    given = recipe.config["model"]["init_args"]
    options, read = given["norm_options"], recipe.config["data"]["init_args"]
    number = recipe.about.get("number")
    assert (options["population"], options["momentum"], read["folded"], number) == expected
    assert (options["joint"], options["gamma"]) == ("frame", 1.0)
    assert [options[site] for site in ("input", "recurrent", "cell")] == [None] * 3
    # their way of averaging is the variant
    assert "callbacks" not in recipe.config["trainer"]


@pytest.fixture
def options(sentences):
    size = len(load_corpus("ptb-char", sentences).vocabulary)
    overrides = [
        "--trainer.accelerator=cpu",
        "--trainer.max_epochs=3",
        "--trainer.log_every_n_steps=1",
        f"--model.init_args.vocabulary_size={size}",
        "--model.init_args.hidden_size=6",
        "--data.init_args.batch_size=8",
        "--model.init_args.norm_options.min_rows=2",
        "--data.init_args.eval_batch_size=4",
    ]
    return {"data_dir": sentences, "overrides": overrides}


# in the second of three epochs
@pytest.mark.parametrize(
    ("name", "step"), [("glinskis2017/separate", 9), ("glinskis2017/joint-folded", 5)]
)
def test_a_resumed_training_is_the_uninterrupted_one(tmp_path, options, name, step):
    assert_resumes_alike(tmp_path, name, [step], **options)


def test_fit_then_test(options, capsys):
    folder = ["--data-dir", str(options["data_dir"])]
    name = "glinskis2017/joint-shared"
    assert main(["fit", name, "--run-dir", "run", *folder, *options["overrides"]]) == 0
    assert "best validation loss" in capsys.readouterr().out
    assert main(["test", name, "--ckpt", "run/checkpoints/best.ckpt"]) == 0
    assert "test loss " in capsys.readouterr().out


def explode(folder, seed):
    """The error of a carry run on random lines of up to 400 characters, and its step."""
    draw = random.Random(seed)
    lines = ["".join(draw.choices("abcdefgh ", k=draw.randint(2, 400))) for _ in range(200)]
    folder.mkdir()
    (folder / "own.txt").write_text("\n".join(lines) + "\n")
    overrides = [
        "--trainer.accelerator=cpu",
        "--trainer.max_epochs=5",
        "--model.init_args.vocabulary_size=10",
        "--model.init_args.hidden_size=8",
        "--data.init_args.dataset=text",
        "--data.init_args.file=own.txt",
        "--data.init_args.batch_size=4",
        "--optimizer.init_args.lr=0.05",
    ]
    options = {"data_dir": folder, "run_dir": folder / "run", "overrides": overrides}
    with pytest.raises(DivergedError, match=r"the gradient of rnn\.\w+ is not finite") as error:
        fit("glinskis2017/carry", every_n_steps=1, **options)
    said = str(error.value)
    return said, int(re.search(r"diverged at step (\d+)", said).group(1))


def test_the_carry_explodes_and_the_last_good_checkpoint_is_kept(tmp_path):
    # rounding decides after how many steps: some explode at the first, and have no checkpoint
    runs = ((tmp_path / str(seed), *explode(tmp_path / str(seed), seed)) for seed in range(2, 9))
    folder, said, step = next(run for run in runs if run[-1] > 0)
    path = folder / "run" / "checkpoints" / "last.ckpt"
    kept = read_checkpoint(path)
    assert kept["global_step"] == step
    assert f"last good checkpoint is {path} (step {step})" in said
    assert all(torch.isfinite(value).all() for value in kept["state_dict"].values())
