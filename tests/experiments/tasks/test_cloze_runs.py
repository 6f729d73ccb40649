"""Cloze recipes from end to end, on a few questions."""

import pytest
from interruption import assert_resumes_alike
from question_files import PLACEHOLDERS, write_questions

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.comparing.compare import compare
from rnnorm.experiments.reporting.report import report
from rnnorm.experiments.trained.outcome import read_outcome
from rnnorm.experiments.training.fit import fit

PAPER = "cooijmans2016/"
VARIANTS = ("lstm", "bn", "bn-everywhere", "bn-e1", "bn-e2")


@pytest.fixture(scope="module")
def cnn_dir(tmp_path_factory):
    return write_questions(tmp_path_factory.mktemp("cnn") / "cnn").parent


def tiny(epochs=2, batch=20):
    return [
        "--trainer.accelerator=cpu",
        f"--trainer.max_epochs={epochs}",
        "--trainer.log_every_n_steps=1",
        "--model.init_args.hidden_size=6",
        "--model.init_args.embedding_size=6",
        f"--model.init_args.vocabulary_size={6 + 1 + PLACEHOLDERS}",
        "--data.init_args.words=null",
        f"--data.init_args.placeholders={PLACEHOLDERS}",
        f"--data.init_args.batch_size={batch}",
    ]


@pytest.mark.parametrize("name", ["cnn-lstm", "cnn-bn-e2", "cnn-full-bn-e2"])
def test_a_published_folder_is_trained_on_and_tested(tmp_path, cnn_dir, name, capsys):
    run = fit(PAPER + name, data_dir=cnn_dir, run_dir=tmp_path / "run", overrides=tiny())
    said = capsys.readouterr().out
    assert "questions: 60 train" in said
    assert "20 val" in said
    assert run.trainer.global_step == 6
    assert 0 <= run.best <= 1
    checkpoint = str(run.best_checkpoint)
    assert main(["test", PAPER + name, "--ckpt", checkpoint]) == 0
    outcome = read_outcome(run.folder)
    assert outcome.ours() == pytest.approx(100 * run.best)
    kinds = {test.statistics for test in outcome.tests}
    assert kinds == ({None} if name == "cnn-lstm" else {"population", "batch"})
    assert all(0 <= test.metrics["test/error"] <= 1 for test in outcome.tests)


def test_a_reader_of_another_cell_is_trained_and_reported(tmp_path, cnn_dir):
    options = ["--model.init_args.cell=GRU", "--model.init_args.forget_bias=null"]
    overrides = [*tiny(1), *options]
    run = fit(f"{PAPER}cnn-bn", data_dir=cnn_dir, run_dir=tmp_path / "run", overrides=overrides)
    assert type(run.experiment.model.query_encoder).__name__ == "GRU"
    page = report([run.folder], tmp_path / "page.html").read_text()
    assert "Attention to a document, question 1" in page
    # of a model with another cell again
    assert "A batch-normalised tanh RNN as it starts" in page


def test_a_resumed_training_is_the_uninterrupted_one(tmp_path, cnn_dir):
    options = {"data_dir": cnn_dir, "overrides": tiny(3)}
    assert_resumes_alike(tmp_path, f"{PAPER}cnn-bn-e2", [4], **options)


def test_the_variants_of_a_set_can_be_compared(tmp_path, cnn_dir):
    names = [f"{PAPER}babi-{variant}" for variant in VARIANTS]
    # on other data, that come along
    options = [*tiny(1), "--data.init_args.dataset=cnn", "--data.init_args.train_size=40"]
    curves = compare(names, tmp_path / "out", data_dir=cnn_dir, overrides=options)
    assert [curve.model for curve in curves] == names
    assert all(len(curve.values) == 1 and 0 <= curve.values[0] <= 100 for curve in curves)


def test_a_mistake_leaves_no_run_folder(tmp_path, cnn_dir):
    name = f"{PAPER}cnn-lstm"
    overrides = [*tiny(), "--model.init_args.vocabulary_size=9"]
    with pytest.raises(ValueError, match=r"vocabulary_size must be 15, the 6 words .* got 9"):
        fit(name, data_dir=cnn_dir, run_dir=tmp_path / "a", overrides=overrides)
    with pytest.raises(FileNotFoundError, match="--data-dir"):
        fit(name, run_dir=tmp_path / "a", overrides=tiny())
    with pytest.raises(FileNotFoundError, match=r"training has no \.question file"):
        fit(name, data_dir=tmp_path, run_dir=tmp_path / "a", overrides=tiny())
    assert not (tmp_path / "a").exists()


def test_a_checkpoint_of_other_words_is_refused(tmp_path, cnn_dir):
    run = fit(f"{PAPER}cnn-lstm", data_dir=cnn_dir, run_dir=tmp_path / "run", overrides=tiny(1))
    other = tmp_path / "other"
    for path in (cnn_dir / "cnn").rglob("*.question"):
        to = other / path.relative_to(cnn_dir)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(path.read_text().replace("met", "hit"))
    with pytest.raises(ValueError, match=r"not that of the checkpoint.*such as 'hit'"):
        fit(resume=run.folder, data_dir=other, overrides=["--trainer.max_epochs=2"])
