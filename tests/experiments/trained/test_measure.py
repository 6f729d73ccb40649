import errno
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from rnnorm import lightning
from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.trained import measurement
from rnnorm.experiments.trained import test as measuring
from rnnorm.experiments.trained.measurement import read_measurements
from rnnorm.experiments.trained.test import measure
from rnnorm.experiments.training.fit import fit
from rnnorm.lightning import estimate_statistics

RECIPE = "demo/digits-bn"
CHARACTERS = "cooijmans2016/ptb-char-bn"
SMALL = [
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=1",
    "--trainer.log_every_n_steps=1",
    "--model.init_args.hidden_size=6",
    "--data.init_args.length=20",
    "--data.init_args.batch_size=10",
    "--data.init_args.eval_batch_size=4",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs of the demo's recipes, each trained once."""
    runs = {}

    def of(name, tiny):
        if name not in runs:
            folder = tmp_path_factory.mktemp("trained") / "run"
            runs[name] = fit(f"demo/digits-{name}", run_dir=folder, overrides=tiny)
        # what is measured is kept in the folder
        (runs[name].folder / "tests.json").unlink(missing_ok=True)
        return runs[name]

    return of


@pytest.fixture
def characters(sentences):
    """A trained character model, and its text."""
    overrides = [*SMALL, "--model.init_args.vocabulary_size=19"]
    return fit(CHARACTERS, data_dir=sentences, overrides=overrides)


def test_both_statistics_are_measured_and_kept(tiny, trained):
    run = trained("bn", tiny)
    measured = measure(RECIPE, run.best_checkpoint)
    assert [m.statistics for m in measured] == ["population", "batch"]
    one, two = (m.metrics["test/loss"] for m in measured)
    assert one != two
    assert {(m.checkpoint, m.epoch) for m in measured} == {("best.ckpt", run.best_epoch)}
    assert read_measurements(run.folder) == measured
    # taken twice, neither changes the other
    assert measure(RECIPE, run.best_checkpoint, statistics="population") == measured[:1]
    assert len(read_measurements(run.folder)) == 2


def test_batch_statistics_depend_on_the_minibatch_and_population_statistics_do_not(tiny, trained):
    run = trained("bn", tiny)

    def losses(rows):
        few = [f"--data.init_args.eval_batch_size={rows}"]
        measured = measure(RECIPE, run.best_checkpoint, overrides=few)
        return {m.statistics: m.metrics["test/loss"] for m in measured}

    few, many = losses(5), losses(200)
    assert few["population"] == pytest.approx(many["population"], rel=1e-5)
    assert few["batch"] != pytest.approx(many["batch"], rel=1e-3)


def test_statistics_are_estimated_on_as_many_rows_as_the_recipe_takes(tiny, tmp_path, monkeypatch):
    recipe = tmp_path / "own.yaml"
    exact = "{class_path: rnnorm.lightning.ExactStatistics, init_args: {batch_size: 45}}"
    recipe.write_text(f"base: demo/digits-bn\ntrainer: {{callbacks: [{exact}]}}\n")
    run = fit(str(recipe), run_dir="run", overrides=tiny)
    rows = []

    def estimate(loader, model):
        batches = list(loader)
        rows[:] = [x.size(1) for x, _ in batches]
        estimate_statistics(batches, model)

    monkeypatch.setattr(lightning, "estimate_statistics", estimate)
    measure(run.folder, estimate=True)
    assert rows[0] == 45
    every = sum(rows)
    measure(run.folder, estimate=True, overrides=["--trainer.callbacks.batch_size=50"])
    assert rows[0] == 50
    assert sum(rows) == every


def test_statistics_are_estimated_in_the_precision_of_the_test(tiny, trained, monkeypatch):
    run, dtypes = trained("bn", tiny), []

    def estimate(loader, model):
        batches = list(loader)
        dtypes.append((batches[0][0].dtype, torch.is_autocast_enabled("cpu")))
        estimate_statistics(batches, model)

    monkeypatch.setattr(lightning, "estimate_statistics", estimate)
    for precision in ("64-true", "bf16-mixed"):
        measure(run.folder, estimate=True, overrides=[f"--trainer.precision={precision}"])
    assert dtypes == [(torch.float64, False), (torch.float32, True)]


SHARED = "--model.norm_options.population=shared"


def test_statistics_shared_by_all_steps_can_be_estimated_for_a_trained_model(tiny, trained):
    run = trained("bn", tiny)
    per_step, _ = measure(run.folder, estimate=True)
    shared, batch = measure(run.folder, estimate=True, overrides=[SHARED])
    assert shared.metrics["test/loss"] != per_step.metrics["test/loss"]
    # statistics of each minibatch are per step in any case
    assert batch.metrics == measure(run.folder, statistics="batch")[0].metrics
    again = measure(run.folder, estimate=True, overrides=["--model.norm_options.horizon=30"])
    assert again[0].metrics["test/loss"] != shared.metrics["test/loss"]


def test_statistics_of_another_kind_need_an_estimate(tiny, trained):
    run = trained("bn", tiny)
    with pytest.raises(ValueError, match=r"population.*; rnnorm test --estimate takes other"):
        measure(run.folder, overrides=[SHARED])
    with pytest.raises(ValueError, match=r"trained with other settings: .*gamma"):
        measure(run.folder, estimate=True, overrides=[SHARED, "--model.norm_options.gamma=1"])


def test_a_shorter_horizon_is_read_out_of_the_statistics_of_a_run(tiny, trained):
    run = trained("bn", tiny)
    ours, short, long = (
        measure(run.folder, statistics="population", overrides=overrides)[0].metrics["test/loss"]
        for overrides in ([], *([f"--model.norm_options.horizon={n}"] for n in (10, 1000)))
    )
    assert short != ours == pytest.approx(long, rel=1e-6)


def test_the_unit_of_a_score_may_differ_from_that_of_training(characters):
    nats, bits = (
        measure(characters.folder, statistics="population", overrides=overrides)[0].metrics
        for overrides in (["--model.unit=nats"], [])
    )
    assert nats["test/loss"] == pytest.approx(bits["test/bits_per_character"] * 0.693147, rel=1e-5)


def test_the_sampling_error_is_that_of_the_test_rows(tiny, trained):
    run = trained("bn", tiny)
    measured = measure(run.folder)
    rows = len(run.experiment.datamodule.loaders["test"].y)
    for metrics in (m.metrics for m in measured):
        rate = metrics["test/accuracy"]
        expected = (rate * (1 - rate) / (rows - 1)) ** 0.5
        assert metrics["test/sampling_error"] == pytest.approx(expected, rel=1e-5)


def test_a_single_test_row_has_no_sampling_error(tiny, monkeypatch, trained):
    run = trained("ln", tiny)
    x, y = next(iter(run.experiment.datamodule.loaders["test"]))
    one = DataLoader([(x[:, :1], y[:1])], batch_size=None)
    monkeypatch.setattr(measuring, "_loaders", lambda *_: [(None, one)])
    (measured,) = measure(run.folder)
    assert measured.metrics.keys() == {"test/loss", "test/accuracy"}


@pytest.mark.parametrize("limit", ["0", "0.0001"])
def test_a_limit_that_leaves_no_minibatch_is_refused(tiny, limit, trained):
    run = trained("lstm", tiny)
    with pytest.raises(ValueError, match="limit_test_batches"):
        measure(run.folder, overrides=[f"--trainer.limit_test_batches={limit}"])


@pytest.mark.parametrize(
    "option",
    ["trainer.max_epochs=3", "trainer.devices=2", "optimizer.lr=1", "lr_scheduler.gamma=1"],
)
def test_an_option_of_training_is_refused_for_a_run(tiny, option, capsys, trained):
    run = trained("lstm", tiny)
    with pytest.raises(SystemExit):
        main(["test", str(run.folder), f"--{option}"])
    assert (
        f"--{option} has no effect: the run in {run.folder} is trained" in capsys.readouterr().err
    )


@pytest.mark.parametrize("command", ["export", "write"])
def test_an_option_of_the_trainer_is_refused_where_none_runs(
    tiny, command, capsys, trained, tmp_path
):
    run, out = trained("lstm", tiny), tmp_path / "model"
    words = [command, str(run.folder), "--trainer.precision=64-true"]
    words += ["--out", str(out)] if command == "export" else []
    with pytest.raises(SystemExit):
        main(words)
    said = "--trainer.precision=64-true has no effect: no trainer runs the model here"
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_a_model_without_batch_statistics_has_one_measurement(tiny, trained):
    run = trained("ln", tiny)
    (only,) = measure("demo/digits-ln", run.last_checkpoint)
    assert only.statistics is None
    with pytest.raises(ValueError, match="statistics must be None, got 'batch'"):
        measure("demo/digits-ln", run.last_checkpoint, statistics="batch")
    with pytest.raises(ValueError, match="lengths are for a text"):
        measure("demo/digits-ln", run.last_checkpoint, lengths=[5])


def test_outside_a_run_folder_nothing_is_written(tmp_path, tiny, capsys, trained):
    run = trained("bn", tiny)
    alone = tmp_path / "somewhere" / "else"
    alone.mkdir(parents=True)
    shutil.copy(run.best_checkpoint, alone / "model.ckpt")
    inside = measure(RECIPE, run.best_checkpoint)
    outside = measure(RECIPE, alone / "model.ckpt", overrides=tiny)
    assert "model.ckpt does not lie in a run folder" in capsys.readouterr().err
    assert [m.metrics for m in outside] == [m.metrics for m in inside]
    assert [path.name for path in alone.parent.rglob("*") if path.is_file()] == ["model.ckpt"]


@pytest.mark.parametrize("place", ["alone", "run/copies", "other/checkpoints"])
def test_a_run_keeps_what_is_measured_of_its_own_checkpoints_alone(tiny, tmp_path, capsys, place):
    run = fit(RECIPE, run_dir=tmp_path / "run", overrides=[*tiny, "--trainer.max_epochs=1"])
    shutil.copytree(run.folder, tmp_path / "other")
    copy = tmp_path / place / "best.ckpt"
    copy.parent.mkdir(exist_ok=True)
    shutil.copy(run.best_checkpoint, copy)
    measured = measure(run.folder, copy)
    own = run.folder / "checkpoints"
    assert f"not kept: {copy} does not lie in {own}" in capsys.readouterr().err
    assert list(tmp_path.rglob("tests.json")) == []
    # its own, by whatever path
    (link := tmp_path / "link.ckpt").symlink_to(run.best_checkpoint)
    measure(run.folder, link)
    assert read_measurements(run.folder) == measured


def test_a_stream_has_population_statistics_alone(characters):
    (only,) = measure(CHARACTERS, characters.best_checkpoint)
    assert (only.statistics, only.length) == ("population", None)
    with pytest.raises(ValueError, match="must be 'population' where no minibatch has two rows"):
        measure(CHARACTERS, characters.best_checkpoint, statistics="batch")


def test_a_score_for_each_length_and_statistics(characters):
    measured = measure(CHARACTERS, characters.best_checkpoint, lengths=[10, 30])
    assert [(m.length, m.statistics) for m in measured] == [
        (10, "population"),
        (10, "batch"),
        (30, "population"),
        (30, "batch"),
    ]
    scores = [m.metrics["test/bits_per_character"] for m in measured]
    assert len(set(scores)) == 4
    text = len(characters.experiment.datamodule.loaders["test"].symbols)
    for wrong, said in (
        (0, "at least 1, got 0"),
        (text // 2 + 1, f"at least 2 windows of the test text, got {text // 2 + 1}"),
        (9999, "ends after"),
    ):
        with pytest.raises(ValueError, match=said):
            measure(CHARACTERS, characters.best_checkpoint, lengths=[10, wrong])
    assert len(read_measurements(characters.folder)) == 4


@pytest.mark.parametrize("place", ["file", "data_dir", "--data-dir"])
def test_a_run_finds_its_text_from_another_folder(sentences, monkeypatch, place):
    # what YAML would take for a mapping, in the folder that the training starts in
    given = Path("a folder: texts")
    given.mkdir()
    text = (sentences / "ptb.train.txt").read_text()
    (given / "novel: one.txt").write_text(text * 20)
    overrides = [
        "--data.dataset=text",
        "--data.file=" + ("a folder: texts/" if place == "file" else "") + "novel: one.txt",
        f"--model.vocabulary_size={len(set(text))}",
        *(["--data.init_args.data_dir=a folder: texts"] if place == "data_dir" else []),
        *SMALL,
    ]
    data_dir = given if place == "--data-dir" else None
    run = fit(CHARACTERS, run_dir="text", data_dir=data_dir, overrides=overrides)
    folder = run.folder.resolve()
    monkeypatch.chdir("/")
    assert len(measure(folder)) == 1


def test_a_minibatch_of_fewer_rows_than_a_statistic_needs_is_left_out(tiny):
    run = fit(RECIPE, overrides=[*tiny, "--trainer.max_epochs=1"])
    kinds = {}
    for rows in (2, 1):
        overrides = [f"--data.init_args.eval_batch_size={rows}"]
        kinds[rows] = [
            m.statistics for m in measure(RECIPE, run.best_checkpoint, overrides=overrides)
        ]
    assert kinds == {2: ["population", "batch"], 1: ["population"]}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_run_that_cannot_be_written_to_is_measured_all_the_same(
    tiny, capsys, monkeypatch, trained, number
):
    run = trained("bn", tiny)

    def refused(path, *_):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(measurement, "write_whole", refused)
    assert main(["test", str(run.folder)]) == 0
    said = capsys.readouterr()
    assert said.out.count("test accuracy") == 2
    path = run.folder / "tests.json"
    assert said.err == f"could not keep the measurements in {path} ({os.strerror(number)})\n"


def test_a_folder_in_the_place_of_the_kept_measurements_costs_none(tiny, capsys, tmp_path, trained):
    run = shutil.copytree(trained("bn", tiny).folder, tmp_path / "run")
    (run / "tests.json").mkdir()
    assert main(["test", str(run)]) == 0
    said = capsys.readouterr()
    assert said.out.count("test accuracy") == 2
    assert said.err == f"could not keep the measurements in {run / 'tests.json'} (Is a directory)\n"


def test_ctrl_c_and_sigterm_end_a_test_as_they_end_a_program(tiny, monkeypatch, trained):
    run = trained("bn", tiny)
    before, seen = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)], []

    def interrupted(self, batch, batch_idx):
        seen.extend(signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM))
        raise KeyboardInterrupt

    monkeypatch.setattr(type(run.experiment.model), "test_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(run.folder)
    assert seen == before
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
