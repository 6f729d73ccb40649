"""Language recipes from end to end, on a few sentences."""

import pytest
from interruption import Interruption, KillAt, assert_resumes_alike

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.data.text.corpora import load_corpus
from rnnorm.experiments.trained.test import measure
from rnnorm.experiments.training.checkpoint import read_checkpoint
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.metrics import read_metrics

CHARACTERS = "cooijmans2016/ptb-char-bn"
WORDS = "laurent2015/ptb-word-small-bn"


@pytest.fixture
def options(sentences):
    """For a recipe, the arguments that make it a training of a few sentences."""

    def of(name):
        words = "word" in name
        size = len(load_corpus("ptb-word" if words else "ptb-char", sentences).vocabulary)
        overrides = [
            "--trainer.accelerator=cpu",
            "--trainer.max_epochs=3",
            "--trainer.log_every_n_steps=1",
            f"--model.init_args.vocabulary_size={size}",
            "--model.init_args.hidden_size=6",
            f"--data.init_args.length={5 if words else 20}",
            f"--data.init_args.batch_size={16 if words else 10}",
            "--data.init_args.eval_batch_size=4",
        ]
        if words:
            overrides += ["--model.init_args.embedding_size=6", "--lr_scheduler.init_args.epochs=1"]
        return {"data_dir": sentences, "overrides": overrides}

    return of


@pytest.mark.parametrize("name", [CHARACTERS, WORDS])
def test_a_resumed_training_is_the_uninterrupted_one(tmp_path, options, name):
    assert_resumes_alike(tmp_path, name, [1, 6], **options(name))


def test_a_checkpoint_within_an_epoch_holds_the_state_that_goes_on(tmp_path, options):
    folder = tmp_path / "run"
    with pytest.raises(Interruption):
        fit(WORDS, run_dir=folder, every_n_steps=1, callbacks=[KillAt(2)], **options(WORDS))
    state = read_checkpoint(folder / "checkpoints" / "last.ckpt")["carried_state"]
    assert [s.shape for s in state] == [(2, 16, 6)] * 2
    fit(resume=folder)
    assert read_checkpoint(folder / "checkpoints" / "last.ckpt")["carried_state"] is None


def test_the_learning_rate_falls_after_the_first_epochs(tmp_path, options):
    run = fit(WORDS, run_dir=tmp_path / "run", **options(WORDS))
    assert run.trainer.optimizers[0].param_groups[0]["lr"] == 0.125


def test_the_best_epoch_is_that_of_the_lowest_score(tmp_path, options, capsys):
    run = fit(CHARACTERS, run_dir=tmp_path / "run", **options(CHARACTERS))
    curve = read_metrics(run.folder / "metrics.csv")["val/bits_per_character"]
    values = [point.value for point in curve]
    assert run.best == pytest.approx(min(values))
    assert run.best_epoch == values.index(min(values)) + 1
    assert f"best validation bits per character {run.best:.4f}" in run.summary()
    assert "validation bits per character " in capsys.readouterr().out


def test_fit_then_test(options, capsys):
    given = options(CHARACTERS)
    folder = ["--data-dir", str(given["data_dir"])]
    assert main(["fit", CHARACTERS, "--run-dir", "run", *folder, *given["overrides"]]) == 0
    command = ["test", CHARACTERS, "--ckpt", "run/checkpoints/best.ckpt"]
    capsys.readouterr()
    assert main(command) == 0
    assert "test bits per character " in capsys.readouterr().out
    windows = ["--data.init_args.test_by=windows", "--data.init_args.eval_length=50"]
    assert main([*command, "--estimate", *windows]) == 0


def test_a_checkpoint_of_another_vocabulary_is_refused(tmp_path, options, sentences):
    given = options(CHARACTERS)
    run = fit(CHARACTERS, run_dir=tmp_path / "run", **given)
    before = (run.folder / "checkpoints" / "last.ckpt").read_bytes()
    # another letter in all places: as many symbols, with other numbers
    for path in sentences.glob("ptb.char.*"):
        path.write_text(path.read_text().replace("t", "z"))
    with pytest.raises(ValueError, match=r"not that of the checkpoint.*such as 'z'.*such as 't'"):
        measure(CHARACTERS, run.best_checkpoint)
    with pytest.raises(ValueError, match="not that of the checkpoint"):
        fit(resume=run.folder, overrides=["--trainer.max_epochs=4"])
    assert (run.folder / "checkpoints" / "last.ckpt").read_bytes() == before


def test_a_mistake_leaves_no_run_folder(tmp_path, options):
    given = options(CHARACTERS)
    for override, what in (
        ("--data.init_args.length=9999", "ends after"),
        ("--model.init_args.vocabulary_size=9", "vocabulary_size must be"),
    ):
        overrides = [*given["overrides"], override]
        with pytest.raises(ValueError, match=what):
            fit(CHARACTERS, data_dir=given["data_dir"], run_dir=tmp_path / "a", overrides=overrides)
    with pytest.raises(FileNotFoundError, match="--data-dir"):
        fit(CHARACTERS, run_dir=tmp_path / "a")
    assert not (tmp_path / "a").exists()


OF_THE_LECTURE = [
    "chung2016/ptb-char-hm-lstm-annealed-to-5",
    "chung2016/ptb-char-hm-lstm-given",
    "chung2016/ptb-char-hm-lstm-sampling",
    "chung2016/ptb-char-hm-lstm-soft",
    "gal2016/ptb-char",
    "koutnik2014/ptb-char-clockwork",
    "krueger2015/ptb-char-norm-stabilizer",
    "krueger2016/ptb-char-zoneout-bn",
    "salimans2016/ptb-char",
    "semeniuta2016/ptb-char",
]


@pytest.mark.parametrize("name", OF_THE_LECTURE)
def test_an_epoch_of_each_cell_and_regulariser(tmp_path, options, name):
    given = options(name)
    given["overrides"] += ["--trainer.max_epochs=1", "--model.init_args.hidden_size=8"]
    run = fit(name, scale="small", run_dir=tmp_path / "run", quiet=True, **given)
    curve = read_metrics(run.folder / "metrics.csv")
    losses = [point.value for point in curve["train/loss"]]
    assert losses[-1] < losses[0]
    (measured,) = measure(run.folder)
    assert measured.metrics["test/bits_per_character"] < 5


@pytest.mark.parametrize("name", [CHARACTERS, WORDS, "laurent2015/appendix-a-bn"])
def test_the_real_treebank_with_a_tiny_budget(tmp_path, ptb_dir, name):
    overrides = [
        "--trainer.accelerator=cpu",
        "--trainer.max_epochs=1",
        "--trainer.log_every_n_steps=1",
        "--model.init_args.hidden_size=8",
        "--data.init_args.train_size=20000",
        "--data.init_args.eval_size=3000",
    ]
    run = fit(name, scale="small", data_dir=ptb_dir, run_dir=tmp_path / "run", overrides=overrides)
    assert run.best is not None
    assert run.best < (10000 if name == WORDS else 6)
