"""A resumed training is the uninterrupted one."""

import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from interruption import Interruption, KillAt, assert_same, logged, weights
from lightning.pytorch import Callback

from rnnorm.experiments.training.checkpoint import read_checkpoint
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.metrics import read_metrics
from rnnorm.experiments.training.signals import Stopped

RECIPE = "demo/digits-bn"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    cache = {}

    def run(overrides):
        key = tuple(overrides)
        if key not in cache:
            folder = tmp_path_factory.mktemp("whole") / "run"
            fit(RECIPE, run_dir=folder, overrides=overrides)
            cache[key] = folder
        return cache[key]

    return run


# 7 steps an epoch: first steps, in mid-epoch, just before and just after an epoch's end
@pytest.mark.parametrize(
    ("limit", "step"),
    [*(("epochs", step) for step in (1, 2, 5, 6, 7, 8, 13)), ("steps", 13), ("steps", 17)],
)
def test_a_resumed_training_is_the_uninterrupted_one(tmp_path, tiny, uninterrupted, step, limit):
    if limit == "steps":
        tiny += ["--trainer.max_steps=19"]
    whole = uninterrupted(tiny)
    folder = tmp_path / "run"
    with pytest.raises(Interruption):
        fit(RECIPE, run_dir=folder, overrides=tiny, every_n_steps=2, callbacks=[KillAt(step)])
    kept = folder / "checkpoints" / "last.ckpt"
    assert kept.exists() == (step > 1)
    run = fit(resume=folder, every_n_steps=2)
    assert run.trainer.global_step == (19 if limit == "steps" else 21)
    one, two = weights(whole), weights(folder)
    assert_same(one["state_dict"], two["state_dict"])
    assert one["global_step"] == two["global_step"]
    states = [s["optimizer_states"][0]["state"] for s in (one, two)]
    for index, state in states[0].items():
        assert torch.equal(state["square_avg"], states[1][index]["square_avg"])
    random = [s["callbacks"]["RandomState"] for s in (one, two)]
    assert torch.equal(random[0]["torch"], random[1]["torch"])
    assert random[0]["numpy"] == random[1]["numpy"]
    assert random[0]["python"] == random[1]["python"]
    logs = [read_metrics(f / "metrics.csv") for f in (whole, folder)]
    assert logs[0].keys() == logs[1].keys()
    for name, curve in logs[0].items():
        here, there = ([p._replace(seconds=0) for p in points] for points in (curve, logs[1][name]))
        assert here == there, name


def test_limited_epochs_resume_too(tmp_path, tiny, uninterrupted):
    tiny += ["--trainer.limit_train_batches=4"]
    whole, folder = uninterrupted(tiny), tmp_path / "run"
    for step in (3, 4, 6, 8):
        with pytest.raises(Interruption):
            fit(
                *((RECIPE,) if step == 3 else ()),
                **({"run_dir": folder} if step == 3 else {"resume": folder}),
                overrides=tiny if step == 3 else (),
                every_n_steps=1,
                callbacks=[KillAt(step)],
            )
    fit(resume=folder)
    assert_same(weights(whole)["state_dict"], weights(folder)["state_dict"])


@pytest.mark.slow
def test_a_killed_process_resumes(tmp_path, tiny, uninterrupted):
    tiny += ["--trainer.log_every_n_steps=1"]
    folder = tmp_path / "run"
    code = f"""
import os, signal, torch
from rnnorm.experiments.training.checkpoint import WholeFiles
from rnnorm.experiments.training.fit import fit
torch.set_num_threads(1)
save = WholeFiles.save_checkpoint
def kill_after(self, checkpoint, *given, **named):
    save(self, checkpoint, *given, **named)
    if checkpoint["global_step"] == 9:
        os.kill(os.getpid(), signal.SIGKILL)
WholeFiles.save_checkpoint = kill_after
fit({RECIPE!r}, run_dir={str(folder)!r}, overrides={tiny!r}, every_n_steps=3)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL
    assert read_checkpoint(folder / "checkpoints" / "last.ckpt")["global_step"] == 9
    fit(resume=folder)
    assert_same(weights(uninterrupted(tiny))["state_dict"], weights(folder)["state_dict"])
    assert logged(folder) == logged(uninterrupted(tiny))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_costs_no_line_either(tmp_path, tiny, uninterrupted, number):
    tiny += ["--trainer.log_every_n_steps=1"]

    class Signal(Callback):
        def on_train_batch_start(self, trainer, *_):
            if trainer.global_step == 4:
                os.kill(os.getpid(), number)

    folder = tmp_path / "run"
    with pytest.raises(Stopped):
        fit(RECIPE, run_dir=folder, overrides=tiny, callbacks=[Signal()])
    fit(resume=folder)
    assert logged(folder) == logged(uninterrupted(tiny))


def test_a_finished_training_goes_on_with_more_epochs(tmp_path, tiny, uninterrupted):
    folder = tmp_path / "run"
    fit(RECIPE, run_dir=folder, overrides=[*tiny, "--trainer.max_epochs=2"])
    fit(resume=folder, overrides=["--trainer.max_epochs=3"])
    assert_same(weights(uninterrupted(tiny))["state_dict"], weights(folder)["state_dict"])
    assert "max_epochs: 3" in (folder / "config.yaml").read_text()


@pytest.mark.parametrize("steps", [6, 7, 9])
def test_a_training_cut_short_by_steps_goes_on_with_more(tmp_path, tiny, uninterrupted, steps):
    folder = tmp_path / "run"
    fit(RECIPE, run_dir=folder, overrides=[*tiny, f"--trainer.max_steps={steps}"])
    assert weights(folder)["global_step"] == steps
    fit(resume=folder)
    assert weights(folder)["global_step"] == steps
    fit(resume=folder, overrides=["--trainer.max_steps=-1"])
    assert_same(weights(uninterrupted(tiny))["state_dict"], weights(folder)["state_dict"])


def test_a_training_that_a_regular_validation_has_ended_goes_on_with_more_steps(
    tmp_path, tiny, uninterrupted
):
    # the estimate of the statistics before each validation draws noise on h_0
    tiny += ["--trainer.val_check_interval=5", "--trainer.callbacks+=EarlyStopping"]
    tiny += ["--trainer.callbacks.monitor=val/loss", "--trainer.callbacks.patience=30"]
    folder = tmp_path / "run"
    fit(RECIPE, run_dir=folder, overrides=[*tiny, "--trainer.max_steps=5"])
    fit(resume=folder, overrides=["--trainer.max_steps=-1"])
    whole = uninterrupted(tiny)
    one, two = weights(whole), weights(folder)
    assert_same(one["state_dict"], two["state_dict"])
    (stopping,) = (name for name in one["callbacks"] if name.startswith("EarlyStopping"))
    assert one["callbacks"][stopping] == two["callbacks"][stopping]


SCHEDULES = {
    "plateau": [
        "--lr_scheduler=ReduceLROnPlateau",
        "--lr_scheduler.monitor=val/loss",
        "--lr_scheduler.patience=0",
        "--lr_scheduler.threshold=0.5",
    ],
    "weight-averaging": [
        "--trainer.callbacks=["
        "{class_path: EMAWeightAveraging, init_args: {decay: 0.9}},"
        "rnnorm.lightning.ExactStatistics]",
        "--model.init_args.norm_options.horizon=16",
    ],
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("step", [7, 10])
def test_a_schedule_on_a_plateau_and_an_average_of_weights_resume_too(
    tmp_path, tiny, uninterrupted, name, step
):
    tiny = [*tiny, *SCHEDULES[name]]
    whole, folder = uninterrupted(tiny), tmp_path / "run"
    fit(RECIPE, run_dir=folder, overrides=[*tiny, f"--trainer.max_steps={step}"])
    fit(resume=folder, overrides=["--trainer.max_steps=-1"])
    one, two = weights(whole), weights(folder)
    assert_same(one["state_dict"], two["state_dict"])
    rates = [s["optimizer_states"][0]["param_groups"][0]["lr"] for s in (one, two)]
    assert rates[0] == rates[1]


# validated after step 5 of 7: a new process has no value when the schedule steps
@pytest.mark.parametrize("cut", [True, False], ids=["cut-off", "ended-by-steps"])
def test_a_schedule_on_a_plateau_remembers_the_last_validation(tmp_path, tiny, uninterrupted, cut):
    tiny = [*tiny, *SCHEDULES["plateau"], "--trainer.val_check_interval=5"]
    whole, folder = uninterrupted(tiny), tmp_path / "run"
    if cut:
        with pytest.raises(Interruption):
            fit(RECIPE, run_dir=folder, overrides=tiny, callbacks=[KillAt(6)])
    else:
        fit(RECIPE, run_dir=folder, overrides=[*tiny, "--trainer.max_steps=5"])
    assert weights(folder)["global_step"] == (6 if cut else 5)
    fit(resume=folder, overrides=[] if cut else ["--trainer.max_steps=-1"])
    one, two = weights(whole), weights(folder)
    assert one["lr_schedulers"] == two["lr_schedulers"]
    assert_same(one["state_dict"], two["state_dict"])


class EndsAt(Callback):
    """Asks for the end of the training after this step, as a budget does."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        trainer.should_stop = trainer.global_step >= self.step


def test_the_score_of_the_validation_that_ends_a_training_is_kept(tmp_path, tiny, uninterrupted):
    folder = tmp_path / "run"
    ended = fit(RECIPE, run_dir=folder, overrides=tiny, callbacks=[EndsAt(5)])
    kept, best = weights(folder), read_checkpoint(folder / "checkpoints" / "best.ckpt")
    assert kept["global_step"] == best["global_step"] == 5
    state = kept["callbacks"]["KeepLastAndBest"]
    assert state == {"best": ended.best, "best_epoch": 1, "best_step": 5}
    # it changes nothing of a training that goes on
    run = fit(resume=folder)
    assert_same(weights(uninterrupted(tiny))["state_dict"], weights(folder)["state_dict"])
    values = [point.value for point in read_metrics(folder / "metrics.csv")["val/accuracy"]]
    assert len(values) == 4
    assert run.best == pytest.approx(max(values))


def test_a_training_stopped_within_the_validation_that_ends_it_is_validated_later(tmp_path, tiny):
    class KillInValidation(Callback):
        def on_validation_epoch_end(self, trainer, pl_module):
            if trainer.global_step == 10:
                raise Interruption

    folder = tmp_path / "run"
    with pytest.raises(Interruption):
        fit(RECIPE, run_dir=folder, overrides=tiny, callbacks=[EndsAt(10), KillInValidation()])
    assert weights(folder)["global_step"] == 7
    fit(resume=folder, callbacks=[EndsAt(10)])
    points = read_metrics(folder / "metrics.csv")["val/accuracy"]
    assert [point.step + 1 for point in points] == [7, 10]
    assert weights(folder)["global_step"] == 10


def test_a_training_that_may_not_end_yet_goes_on(tmp_path, tiny, uninterrupted):
    folder = tmp_path / "run"
    fit(
        RECIPE,
        run_dir=folder,
        overrides=[*tiny, "--trainer.min_epochs=3"],
        callbacks=[EndsAt(10)],
    )
    assert_same(weights(uninterrupted(tiny))["state_dict"], weights(folder)["state_dict"])


def test_a_checkpoint_holds_plain_types_and_tensors(tiny, uninterrupted):
    for name in ("last.ckpt", "best.ckpt"):
        path = uninterrupted(tiny) / "checkpoints" / name
        state = torch.load(path, weights_only=True)
        assert {"python", "numpy", "torch"} <= state["callbacks"]["RandomState"].keys()


@pytest.mark.parametrize(("broken", "taken"), [(1, "previous.ckpt"), (2, "best.ckpt")])
def test_a_broken_checkpoint_is_replaced_by_another_one(
    tmp_path, tiny, uninterrupted, capsys, broken, taken
):
    folder = tmp_path / "run"
    with pytest.raises(Interruption):
        fit(RECIPE, run_dir=folder, overrides=tiny, every_n_steps=2, callbacks=[KillAt(11)])
    kept = folder / "checkpoints"
    for name in ("last.ckpt", "previous.ckpt")[:broken]:
        data = bytearray((kept / name).read_bytes())
        data[len(data) // 2] ^= 1
        (kept / name).write_bytes(data)
    fit(resume=folder)
    said = capsys.readouterr()
    step = {"previous.ckpt": 8, "best.ckpt": 7}[taken]
    assert "last.ckpt is not a whole checkpoint: its checksum is another one" in said.err
    assert f"taking {kept / taken} instead, of step {step}" in said.err
    assert f"resuming at step {step}" in said.out
    assert_same(weights(uninterrupted(tiny))["state_dict"], weights(folder)["state_dict"])


def test_a_training_that_goes_on_from_its_best_checkpoint_logs_nothing_twice(
    tmp_path, tiny, uninterrupted
):
    tiny += ["--trainer.max_epochs=1"]
    whole, folder = uninterrupted(tiny), tmp_path / "run"
    shutil.copytree(whole, folder)
    for name in ("last.ckpt", "previous.ckpt"):
        (folder / "checkpoints" / name).unlink(missing_ok=True)
    fit(resume=folder)
    assert weights(folder)["global_step"] == 7
    assert logged(folder) == logged(whole)


def test_resume_refuses_another_recipe_and_scale(tiny, uninterrupted):
    folder = uninterrupted(tiny)
    with pytest.raises(ValueError, match="is of recipe demo/digits-bn, not of demo/digits-ln"):
        fit("demo/digits-ln", resume=folder)
    with pytest.raises(ValueError, match="has the scale paper, not small"):
        fit(resume=folder, scale="small")
