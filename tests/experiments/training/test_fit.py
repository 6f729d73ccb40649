"""How a training begins and ends: its folder, its budget, and what is refused at its start."""

import os
from pathlib import Path

import pytest
from lightning.pytorch import Callback

from rnnorm.experiments.training.fit import fit

RECIPE = "demo/digits-bn"


def test_a_budget_in_steps_ends_what_asks_for_more_epochs(tmp_path, tiny):
    tiny += ["--trainer.max_steps=4", "--trainer.min_epochs=2"]
    run = fit(RECIPE, run_dir=tmp_path / "run", overrides=tiny)
    assert run.trainer.global_step == 4
    assert "a callback ended it" not in run.summary()


def test_a_callback_that_ends_a_training_is_told(tmp_path, tiny):
    class End(Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.should_stop = trainer.global_step == 3

    run = fit(RECIPE, run_dir=tmp_path / "run", overrides=tiny, callbacks=[End()])
    assert run.trainer.global_step == 3
    assert "a callback ended it" in run.summary()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--trainer.val_check_interval=50", "val_check_interval"),
        ("--lr_scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau", "monitor"),
    ],
)
def test_a_training_that_is_refused_at_its_start_leaves_no_folder(tmp_path, tiny, option, message):
    with pytest.raises(ValueError, match=message):
        fit(RECIPE, run_dir=tmp_path / "run", overrides=[*tiny, option])
    assert not (tmp_path / "run").exists()


def test_a_profiler_that_is_asked_for_reports(tmp_path, tiny, caplog):
    fit(RECIPE, run_dir=tmp_path / "run", overrides=[*tiny, "--trainer.profiler=simple"])
    assert "optimizer_step" in caplog.text


@pytest.mark.parametrize(
    "accumulated",
    [
        ["--trainer.accumulate_grad_batches=2"],
        [
            "--trainer.callbacks+=GradientAccumulationScheduler",
            "--trainer.callbacks.scheduling={0: 2}",
        ],
    ],
)
def test_minibatches_are_not_accumulated_with_lbfgs(tmp_path, tiny, accumulated):
    overrides = [*tiny, "--optimizer=LBFGS", *accumulated]
    with pytest.raises(ValueError, match="minibatches cannot be accumulated with LBFGS"):
        fit(RECIPE, run_dir=tmp_path / "run", overrides=overrides)
    assert not (tmp_path / "run").exists()


def test_an_average_that_no_checkpoint_would_hold_is_refused(tmp_path, tiny):
    given = "--trainer.callbacks+=StochasticWeightAveraging"
    with pytest.raises(ValueError, match=r"may not hold StochasticWeightAveraging.*EMAWeightAvera"):
        fit(
            RECIPE,
            run_dir=tmp_path / "run",
            overrides=[*tiny, given, "--trainer.callbacks.swa_lrs=0.01"],
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "option"), [("BatchSizeFinder", "--batch-size N"), ("LearningRateFinder", "--lr X")]
)
def test_a_setting_that_no_configuration_would_hold_is_refused(tmp_path, tiny, name, option):
    with pytest.raises(ValueError, match=f"may not hold {name}.*: choose it, and give .* {option}"):
        fit(RECIPE, run_dir=tmp_path / "run", overrides=[*tiny, f"--trainer.callbacks+={name}"])
    assert not (tmp_path / "run").exists()


class Broken(Callback):
    """Fails at the start of a training, as a callback does whose package is not installed."""

    def __init__(self, error):
        self.error = error

    def on_train_start(self, *_):
        raise self.error


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("needs psutil"), AttributeError("no lr"), KeyError("train/x")]
)
def test_a_callback_that_fails_before_the_first_step_leaves_no_folder(tmp_path, tiny, error):
    said = f"failed before its first step: {type(error).__name__}: .*{error.args[0]}"
    with pytest.raises(ValueError, match=said):
        fit(RECIPE, run_dir=tmp_path / "run", overrides=tiny, callbacks=[Broken(error)])
    assert not (tmp_path / "run").exists()


def test_everything_is_inside_the_run_folder(tmp_path, tiny):
    fit(RECIPE, run_dir=tmp_path / "a" / "run", overrides=[*tiny, "--trainer.max_epochs=1"])
    assert os.listdir() == []
    assert {p.name for p in (tmp_path / "a").rglob("*") if p.is_file()} >= {
        "run.json",
        "config.yaml",
        "metrics.csv",
        "last.ckpt",
        "best.ckpt",
    }
    assert list((tmp_path / "a" / "run" / "tensorboard").glob("events*"))


def test_the_default_folder_is_named_after_the_recipe(tiny):
    run = fit(RECIPE, overrides=[*tiny, "--trainer.max_epochs=1"])
    assert run.folder == Path("runs/demo-digits-bn")


def test_an_existing_run_folder_is_refused_untouched(tmp_path, tiny):
    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises(FileExistsError, match="holds no run: remove it, or name another --run-dir"):
        fit(RECIPE, run_dir=folder, overrides=tiny)
    assert os.listdir(folder) == []


def test_a_mistake_leaves_no_run_folder(tmp_path, tiny):
    folder = tmp_path / "run"
    with pytest.raises(ValueError, match="shrink"):
        fit(RECIPE, run_dir=folder, overrides=[*tiny, "--data.init_args.shrink=5"])
    with pytest.raises(FileNotFoundError, match="lacks"):
        fit("cooijmans2016/pmnist-bn", run_dir=folder, data_dir=tmp_path)
    with pytest.raises(ValueError, match="Invalid momentum value: -1"):
        fit(RECIPE, run_dir=folder, overrides=[*tiny, "--optimizer.init_args.momentum=-1"])
    with pytest.raises(ValueError, match=r"^every_n_steps must be at least 1, got 0"):
        fit(RECIPE, run_dir=folder, overrides=tiny, every_n_steps=0)
    for option in ("--trainer.max_epochs=-5", "--trainer.accelerator=tpu"):
        with pytest.raises(
            ValueError, match=r"the trainer cannot be made: .*(max_epochs|torch_xla)"
        ):
            fit(RECIPE, run_dir=folder, overrides=[*tiny, option])
    with pytest.raises(ValueError, match=r"trainer\.devices must be 1 .* got 2"):
        fit(RECIPE, run_dir=folder, overrides=[*tiny, "--trainer.devices=2"], one_process=True)
    assert not folder.exists()
