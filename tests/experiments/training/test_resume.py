import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from interruption import Interruption, KillAt
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import GradientAccumulationScheduler

import rnnorm
from rnnorm.experiments.training.checkpoint import WholeFiles, read_checkpoint
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.metrics import MetricsFile, read_metrics
from rnnorm.experiments.training.signals import Stopped

RECIPE = "demo/digits-bn"


def weights(folder):
    return read_checkpoint(folder / "checkpoints" / "last.ckpt")


def assert_same(one, two):
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(value, two[name]), name


def logged(folder):
    """The lines of metrics.csv, without the seconds."""
    lines = (folder / "metrics.csv").read_text().splitlines()
    return [[*line.split(",")[:2], *line.split(",")[3:]] for line in lines]


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


@pytest.mark.parametrize("step", [1, 3, 4])
def test_between_accumulated_minibatches_there_is_no_checkpoint(tmp_path, tiny, step):
    # 7 minibatches an epoch: steps of three, three and one
    tiny = [*tiny, "--trainer.accumulate_grad_batches=3"]
    whole = fit(RECIPE, run_dir=tmp_path / "whole", overrides=tiny)
    assert whole.trainer.global_step == 9
    folder = tmp_path / "run"

    class KillBetween(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.global_step == step and batch_idx in (1, 4):
                raise Interruption

    with pytest.raises(Interruption):
        fit(RECIPE, run_dir=folder, overrides=tiny, every_n_steps=1, callbacks=[KillBetween()])
    fit(resume=folder)
    one, two = weights(tmp_path / "whole"), weights(folder)
    assert_same(one["state_dict"], two["state_dict"])
    assert one["callbacks"]["Clock"]["steps"] == two["callbacks"]["Clock"]["steps"] == 9


def test_a_schedule_of_accumulation_goes_on_within_an_epoch(tmp_path, tiny):
    def scheduled():
        return GradientAccumulationScheduler({0: 2})

    whole = fit(RECIPE, run_dir=tmp_path / "whole", overrides=tiny, callbacks=[scheduled()])
    # 7 minibatches an epoch: steps of two, two, two and one
    assert whole.trainer.global_step == 12
    folder = tmp_path / "run"
    cut = [scheduled(), KillAt(2)]
    with pytest.raises(Interruption):
        fit(RECIPE, run_dir=folder, overrides=tiny, every_n_steps=1, callbacks=cut)
    fit(resume=folder, callbacks=[scheduled()])
    assert_same(*(weights(each)["state_dict"] for each in (tmp_path / "whole", folder)))


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


class KillAfter:
    """Ends a training at once after so many of its files, checkpoints or lines of metrics."""

    def __init__(self, monkeypatch):
        self.files, self.last = "", 0
        self._patch(monkeypatch, WholeFiles, "save_checkpoint", "C")
        self._patch(monkeypatch, MetricsFile, "log_metrics", "M")

    def _patch(self, monkeypatch, owner, name, letter):
        own = getattr(owner, name)

        def written(*given, **named):
            own(*given, **named)
            self.files += letter
            if len(self.files) == self.last:
                raise Interruption

        monkeypatch.setattr(owner, name, written)


class LogsOfEpochs(Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        pl_module.log("train/steps", float(trainer.global_step))


@pytest.mark.parametrize(
    ("every", "options"),
    [
        (2, ["log_every_n_steps=1"]),
        (1, ["log_every_n_steps=2"]),
        (1, ["log_every_n_steps=1", "accumulate_grad_batches=2"]),
        (2, ["log_every_n_steps=1", "val_check_interval=3"]),
        # validations between the minibatches of a step
        (1, ["log_every_n_steps=1", "accumulate_grad_batches=3", "val_check_interval=2"]),
    ],
)
def test_whenever_a_training_is_killed_no_line_is_lost_or_there_twice(
    tmp_path, tiny, monkeypatch, every, options
):
    tiny += ["--trainer.max_epochs=2", *(f"--trainer.{option}" for option in options)]
    given = {"overrides": tiny, "every_n_steps": every, "quiet": True}
    kill, whole = KillAfter(monkeypatch), tmp_path / "whole"
    fit(RECIPE, run_dir=whole, callbacks=[LogsOfEpochs()], **given)
    files = kill.files
    assert {"MC", "CM"} < {files[i : i + 2] for i in range(len(files))}
    # within the first epoch, at its end and at the end of the last one
    for last in (2, 3, len(files) // 2 - 1, len(files) // 2, len(files) - 1):
        folder = tmp_path / f"run-{last}"
        kill.files, kill.last = "", last
        with pytest.raises(Interruption):
            fit(RECIPE, run_dir=folder, callbacks=[LogsOfEpochs()], **given)
        kill.last = 0
        fit(resume=folder, every_n_steps=every, callbacks=[LogsOfEpochs()], quiet=True)
        assert logged(folder) == logged(whole), files[:last]
        assert_same(weights(whole)["state_dict"], weights(folder)["state_dict"])


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


def test_an_average_that_no_checkpoint_would_hold_is_refused(tmp_path, tiny):
    given = "--trainer.callbacks+=StochasticWeightAveraging"
    with pytest.raises(ValueError, match=r"may not hold StochasticWeightAveraging.*EMAWeightAvera"):
        fit(
            RECIPE,
            run_dir=tmp_path / "run",
            overrides=[*tiny, given, "--trainer.callbacks.swa_lrs=0.01"],
        )
    assert not (tmp_path / "run").exists()


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
    with pytest.raises(FileExistsError, match=r"run exists: go on with it by --resume"):
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
    with pytest.raises(ValueError, match="--checkpoint-every must be at least 1, got 0"):
        fit(RECIPE, run_dir=folder, overrides=tiny, every_n_steps=0)
    for option in ("--trainer.max_epochs=-5", "--trainer.accelerator=tpu"):
        with pytest.raises(
            ValueError, match=r"the trainer cannot be made: .*(max_epochs|torch_xla)"
        ):
            fit(RECIPE, run_dir=folder, overrides=[*tiny, option])
    with pytest.raises(ValueError, match=r"trainer\.devices must be 1 .* got 2"):
        fit(RECIPE, run_dir=folder, overrides=[*tiny, "--trainer.devices=2"], one_process=True)
    assert not folder.exists()


OTHERS = {
    "--model.init_args.hidden_size=9": "hidden_size was 8 and is 9",
    "--data.init_args.batch_size=10": "batch_size was 20 and is 10",
    "--data.init_args.train_size=60": "train_size was 130 and is 60",
    "--seed_everything=2": "seed was 1 and is 2",
}


def test_resume_refuses_another_model_or_order_and_stays_resumable(tmp_path, tiny):
    folder = tmp_path / "run"
    with pytest.raises(Interruption):
        fit(RECIPE, run_dir=folder, overrides=tiny, every_n_steps=2, callbacks=[KillAt(4)])
    before = (folder / "config.yaml").read_bytes()
    for override, said in OTHERS.items():
        with pytest.raises(ValueError, match=f"last.ckpt was trained otherwise: .*{said}"):
            fit(resume=folder, overrides=[override])
    assert (folder / "config.yaml").read_bytes() == before
    assert fit(resume=folder).trainer.global_step == 21


OTHERS_WITHOUT_A_CHECKPOINT = {
    "--model.init_args.initial_noise=0.5": r"initial_noise was 0\.1 and is 0\.5",
    "--model.norm_options.gamma=0.5": "norm_options was None and is .*gamma.*",
    "--data.init_args.batch_size=10": "data.init_args.batch_size was 20 and is 10",
    "--seed_everything=2": "seed_everything was 1 and is 2",
}


def test_without_a_checkpoint_too_another_model_or_order_is_refused(tmp_path, tiny):
    folder = tmp_path / "run"
    with pytest.raises(Interruption):
        fit(RECIPE, run_dir=folder, overrides=tiny, callbacks=[KillAt(1)])
    assert not (folder / "checkpoints").exists()
    before = (folder / "config.yaml").read_bytes()
    for override, said in OTHERS_WITHOUT_A_CHECKPOINT.items():
        told = f"{said}, so begin a new training with another --run-dir$"
        with pytest.raises(ValueError, match=f"run was trained otherwise: .*{told}"):
            fit(resume=folder, overrides=[override])
    assert (folder / "config.yaml").read_bytes() == before
    assert fit(resume=folder, overrides=["--data.eval_batch_size=90"]).trainer.global_step == 21


@pytest.mark.parametrize("option", ["max_epochs=1", "val_check_interval=1000"])
def test_what_the_trainer_refuses_leaves_the_configuration_alone(tmp_path, tiny, option):
    folder = tmp_path / "run"
    with pytest.raises(Interruption):
        fit(RECIPE, run_dir=folder, overrides=tiny, every_n_steps=2, callbacks=[KillAt(17)])
    before = (folder / "config.yaml").read_bytes()
    with pytest.raises(ValueError, match=option.split("=")[0]):
        fit(resume=folder, overrides=[f"--trainer.{option}"])
    assert (folder / "config.yaml").read_bytes() == before


def test_broken_checkpoints_leave_the_configuration_alone(tmp_path, tiny):
    folder = tmp_path / "run"
    run = fit(RECIPE, run_dir=folder, overrides=[*tiny, "--trainer.max_epochs=1"])
    before = (folder / "config.yaml").read_bytes()
    for path in run.last_checkpoint.parent.iterdir():
        path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"last\.ckpt is no whole checkpoint.*best\.ckpt is no"):
        fit(resume=folder, overrides=["--trainer.max_epochs=2"])
    assert (folder / "config.yaml").read_bytes() == before


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
    assert "last.ckpt is no whole checkpoint: its checksum is another one" in said.err
    assert f"taking {kept / taken} instead, of step {step}" in said.err
    assert f"resuming at step {step}" in said.out
    assert_same(weights(uninterrupted(tiny))["state_dict"], weights(folder)["state_dict"])


def test_a_checkpoint_that_lacks_something_is_refused_by_name(tmp_path, tiny):
    folder = tmp_path / "run"
    run = fit(RECIPE, run_dir=folder, overrides=[*tiny, "--trainer.max_epochs=1"])
    before = (folder / "config.yaml").read_bytes()
    state = read_checkpoint(run.last_checkpoint)

    def refused(changed, said):
        WholeFiles().save_checkpoint(changed, run.last_checkpoint)
        with pytest.raises(ValueError, match=said) as error:
            fit(resume=folder, overrides=["--trainer.max_epochs=2"])
        assert "\n" not in str(error.value)
        assert (folder / "config.yaml").read_bytes() == before

    for name in ("optimizer_states", "loops", "callbacks", "lr_schedulers"):
        lacks = {key: value for key, value in state.items() if key != name}
        refused(lacks, rf"last\.ckpt is no checkpoint of a training: it has no '{name}'")
        refused(lacks | {name: 7}, rf"last\.ckpt is .*: its '{name}' must be of type")
    refused(state | {"callbacks": {}}, r"last\.ckpt is .*: it has no 'Clock'")
    refused(state | {"loops": {"fit_loop": 7}}, r"cannot go on from .*last\.ckpt: ")
    refused(state | {"optimizer_states": [7]}, r"cannot go on from .*last\.ckpt: ")
    refused(state | {"state_dict": {"a": 7}}, r"cannot go on from .*last\.ckpt: ")


LEARNS_OTHERWISE = [
    ("--optimizer.lr=0.5", r"optimizer\.init_args\.lr was 0\.001 and is 0\.5"),
    ("--optimizer=SGD", r"optimizer\.class_path was 'torch\.optim\.RMSprop' and is .*SGD"),
    ("--lr_scheduler.T_max=2", r"lr_scheduler\.init_args\.T_max was 1 and is 2"),
    ("--trainer.gradient_clip_val=0.001", r"gradient_clip_val was 1\.0 and is 0\.001"),
    ("--trainer.accumulate_grad_batches=2", "accumulate_grad_batches was 1 and is 2"),
    ("--trainer.limit_train_batches=2", "limit_train_batches was None and is 2"),
    ("--trainer.precision=64", "precision was None and is 64"),
    (
        "--trainer.callbacks=[{class_path: rnnorm.lightning.SlopeAnnealing}]",
        r"trainer\.callbacks\.rnnorm\.lightning\.SlopeAnnealing was None and is .*rate",
    ),
    (
        "--trainer.callbacks=[{class_path: lightning.pytorch.callbacks."
        "GradientAccumulationScheduler, init_args: {scheduling: {0: 2}}}]",
        r"callbacks\.GradientAccumulationScheduler was None and is .*scheduling",
    ),
]


def test_resume_refuses_to_learn_otherwise_and_stays_resumable(tmp_path, tiny):
    recipe, folder = tmp_path / "falling.yaml", tmp_path / "run"
    cosine = "{class_path: torch.optim.lr_scheduler.CosineAnnealingLR, init_args: {T_max: 1}}"
    recipe.write_text(f"base: {RECIPE}\nlr_scheduler: {cosine}\n")
    fit(str(recipe), run_dir=folder, overrides=[*tiny, "--trainer.max_epochs=1"])
    before = (folder / "config.yaml").read_bytes()
    for override, said in LEARNS_OTHERWISE:
        with pytest.raises(ValueError, match=f"run was trained otherwise: .*{said}"):
            fit(resume=folder, overrides=["--trainer.max_epochs=2", override])
    assert (folder / "config.yaml").read_bytes() == before
    # what it is anyway may be said again
    more = ["--optimizer.lr=0.001", "--trainer.gradient_clip_val=1", "--trainer.max_epochs=2"]
    assert fit(resume=folder, overrides=more).trainer.global_step == 14


def test_resume_evaluates_in_other_minibatches(tmp_path, tiny):
    folder = tmp_path / "run"
    fit(RECIPE, run_dir=folder, overrides=[*tiny, "--trainer.max_epochs=1"])
    more = ["--trainer.max_epochs=2", "--data.init_args.eval_batch_size=90"]
    assert fit(resume=folder, overrides=more).trainer.global_step == 14


@pytest.mark.parametrize(
    "exact",
    ["[{class_path: rnnorm.lightning.ExactStatistics}]", "rnnorm.lightning.ExactStatistics"],
)
def test_resume_takes_statistics_otherwise(tmp_path, tiny, exact):
    folder = tmp_path / "run"
    fit(RECIPE, run_dir=folder, overrides=[*tiny, "--trainer.max_epochs=1"])
    exact = f"--trainer.callbacks={exact}"
    more = ["--trainer.max_epochs=2", exact]
    assert fit(resume=folder, overrides=more).trainer.global_step == 14


def test_resume_refuses_what_is_no_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run in"):
        fit(resume=tmp_path)
    with pytest.raises(ValueError, match="needs a recipe"):
        fit()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("run.json", b"{recipe", r"run\.json is not JSON: Expecting"),
        ("run.json", b"\xff", r"run\.json is not JSON"),
        ("run.json", b"{}", r"run\.json is of no run"),
        ("run.json", b"null", r"run\.json is of no run: it must be an object, got null"),
        ("run.json", b"[1]", r"run\.json is of no run: it must be an object, got \[1\]"),
        ("run.json", b"[" * 10**5, r"run\.json is not JSON"),
        (
            "run.json",
            b'{"recipe": "a", "scale": "paper", "about": null}',
            r"run\.json is of no run: it needs the key 'about', with a value of type dict",
        ),
        (
            "run.json",
            b'{"recipe": "a", "scale": "paper", "about": {}, "overrides": [1]}',
            r"run\.json is of no run: overrides must be a list of words, got \[1\]",
        ),
        (
            "run.json",
            b'{"recipe": "a", "scale": "paper", "about": {}, "start": 1}',
            r"run\.json is of no run: start must be a path, got 1",
        ),
        (
            "run.json",
            b'{"recipe": "a", "scale": "paper", "about": {"number": "95"}}',
            r"run\.json: about\.number must be a number, got '95'",
        ),
        (
            "run.json",
            b'{"recipe": "a", "scale": "paper", "about": {"number": 95}}',
            r"run\.json: about\.number is given, and about lacks metric",
        ),
        (
            "run.json",
            b'{"recipe": "a", "scale": "small", "about": {"small": 1}}',
            r"run\.json: about\.small must be str, got 1",
        ),
        ("config.yaml", b"", r"config\.yaml is no recipe"),
        ("config.yaml", b"\xff", r"config\.yaml is not YAML"),
        ("config.yaml", b"model: [", r"config\.yaml is not YAML"),
    ],
)
def test_broken_files_of_a_run_are_named(tmp_path, name, content, said):
    run = {"recipe": RECIPE, "scale": "paper", "about": {}, "rnnorm": rnnorm.__version__}
    (tmp_path / "run.json").write_text(json.dumps(run))
    (tmp_path / "config.yaml").write_text("model: {}\ndata: {}\n")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=said):
        fit(resume=tmp_path)


def test_resume_refuses_another_recipe_and_scale(tiny, uninterrupted):
    folder = uninterrupted(tiny)
    with pytest.raises(ValueError, match="is of recipe demo/digits-bn, not of demo/digits-ln"):
        fit("demo/digits-ln", resume=folder)
    with pytest.raises(ValueError, match="has the scale paper, not small"):
        fit(resume=folder, scale="small")
