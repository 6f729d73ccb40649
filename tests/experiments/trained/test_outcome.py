import shutil
from dataclasses import replace

import pytest
from interruption import Interruption, KillAt
from lightning.pytorch.callbacks import EarlyStopping

import rnnorm
from rnnorm.experiments.comparing.budget import StopAfterSeconds
from rnnorm.experiments.recipe.recipe import read_recipe
from rnnorm.experiments.trained.outcome import read_outcome, read_unsaved
from rnnorm.experiments.trained.test import measure
from rnnorm.experiments.training import machine
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.machine import processor

RECIPE = "demo/digits-bn"


@pytest.fixture
def run(tiny):
    return fit(RECIPE, overrides=tiny)


def test_an_outcome_is_what_the_training_said(run):
    outcome = read_outcome(run.folder)
    about = read_recipe(RECIPE).about
    assert (outcome.recipe, outcome.scale) == (RECIPE, "paper")
    assert (outcome.title, outcome.metric) == (about["title"], about["metric"])
    assert (outcome.epochs, outcome.steps) == (3, 21)
    assert outcome.seconds == run.seconds
    assert (outcome.best, outcome.best_epoch) == (run.best, run.best_epoch)
    assert outcome.versions.keys() == {"rnnorm", "torch"}
    assert (outcome.seed, outcome.minutes) == (1, None)
    assert "hidden_size=8" in outcome.changes
    assert outcome.label == f"{RECIPE}, {', '.join(outcome.changes)}"
    (place,) = outcome.places
    assert place["processor"] == processor()
    assert place["kernels"] in rnnorm.backends()


def test_an_interrupted_epoch_is_not_counted(tiny):
    with pytest.raises(Interruption):
        fit(RECIPE, run_dir="run", overrides=tiny, every_n_steps=1, callbacks=[KillAt(10)])
    outcome = read_outcome("run")
    assert (outcome.epochs, outcome.steps) == (1, 10)


def test_a_part_on_another_machine_is_a_place_of_its_own(run, monkeypatch):
    monkeypatch.setattr(machine, "processor", lambda: "another")
    fit(resume=run.folder, overrides=["--trainer.max_epochs=4"])
    fit(resume=run.folder, overrides=["--trainer.max_epochs=5"])
    first, second = read_outcome(run.folder).places
    assert first | {"processor": "another"} == second


def test_a_budget_of_minutes_is_that_of_the_last_part(tiny):
    budget = [StopAfterSeconds(90.0)]
    run = fit(RECIPE, overrides=[*tiny, "--trainer.max_epochs=1"], callbacks=budget)
    assert read_outcome(run.folder).minutes == 1.5
    fit(resume=run.folder, overrides=["--trainer.max_epochs=2"])
    assert read_outcome(run.folder).minutes is None


def test_our_number_has_the_papers_unit(run):
    assert read_outcome(run.folder).ours() is None
    population, batch = measure(RECIPE, run.best_checkpoint)
    outcome = read_outcome(run.folder)
    assert outcome.tests == (population, batch)
    assert outcome.ours() == pytest.approx(100 * population.metrics["test/accuracy"])
    assert outcome.ours("batch") == pytest.approx(100 * batch.metrics["test/accuracy"])
    assert outcome.tested("batch")["test/loss"] == batch.metrics["test/loss"]


def test_a_test_of_something_else_is_not_our_number(run):
    measure(RECIPE, run.best_checkpoint, overrides=["--data.init_args.eval_batch_size=9"])
    measure(RECIPE, run.best_checkpoint, estimate=True)
    measure(RECIPE, run.last_checkpoint)
    outcome = read_outcome(run.folder)
    assert len(outcome.tests) == 6
    assert outcome.ours() is outcome.ours("batch") is None


def test_a_test_of_an_epoch_that_is_no_longer_the_best_is_not_our_number(tiny):
    run = fit(RECIPE, overrides=[*tiny, "--trainer.max_epochs=1"])
    measure(RECIPE, run.best_checkpoint)
    assert read_outcome(run.folder).ours() is not None
    longer = fit(resume=run.folder, overrides=["--trainer.max_epochs=6"])
    assert longer.best_epoch > 1
    assert read_outcome(run.folder).ours() is None


def test_a_test_of_another_step_of_the_best_epoch_is_not_our_number(tiny):
    often = [*tiny, "--trainer.val_check_interval=2"]
    run = fit(RECIPE, overrides=often)
    measure(run.folder)
    outcome = read_outcome(run.folder)
    assert {test.step for test in outcome.tests} == {outcome.best_step}
    assert outcome.ours() is not None
    # a better one that was found later within the epoch
    assert replace(outcome, best_step=outcome.best_step + 2).ours() is None
    # one of before steps were kept
    older = tuple(replace(test, step=None) for test in outcome.tests)
    assert replace(outcome, tests=older).ours() == outcome.ours()


def test_without_a_validation_the_last_step_is_what_is_tested(tiny):
    run = fit(RECIPE, overrides=[*tiny, "--trainer.limit_val_batches=0"])
    measure(run.folder)
    outcome = read_outcome(run.folder)
    assert outcome.best is None
    assert outcome.ours() is not None
    assert replace(outcome, steps=outcome.steps + 1).ours() is None


def test_a_validation_that_stops_the_training_within_an_epoch_is_in_what_came_out(tiny):
    stop = EarlyStopping("val/accuracy", mode="max", stopping_threshold=0.0)
    given = [*tiny, "--trainer.val_check_interval=3"]
    run = fit(RECIPE, overrides=given, callbacks=[stop])
    measure(run.folder)
    outcome = read_outcome(run.folder)
    assert outcome.steps == outcome.best_step == 3
    assert outcome.best == run.best
    assert outcome.ours() is not None


def test_where_the_paper_gives_a_validation_score_ours_is_one_too(tiny, tmp_path):
    recipe = tmp_path / "own.yaml"
    text = "about: {title: t, paper: p, metric: validation accuracy, number: 0.5}\n"
    for part, value in read_recipe(RECIPE).config.items():
        text += f"{part}: {value!r}\n".replace("None", "null")
    recipe.write_text(text)
    run = fit(str(recipe), run_dir="run", overrides=tiny)
    outcome = read_outcome("run")
    assert outcome.ours() == run.best
    assert outcome.ours("batch") is None


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run"):
        read_outcome(tmp_path)
    (tmp_path / "run.json").write_text('{"recipe": "a", "scale": "paper", "about": {}}')
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        read_outcome(tmp_path)


def test_without_a_checkpoint_steps_are_those_of_the_metrics(tiny):
    run = fit(RECIPE, run_dir="run", overrides=[*tiny, "--trainer.max_epochs=1"], quiet=True)
    whole = read_outcome(run.folder)
    shutil.rmtree(run.folder / "checkpoints")
    unsaved = read_unsaved(run.folder)
    assert (unsaved.recipe, unsaved.seed, unsaved.steps) == (RECIPE, 1, whole.steps)
    assert (unsaved.epochs, unsaved.best, unsaved.tests) == (0, None, ())
    (run.folder / "metrics.csv").unlink()
    assert read_unsaved(run.folder).steps == 0
