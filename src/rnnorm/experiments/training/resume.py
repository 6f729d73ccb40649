"""Make a resumed training the same as one that was never interrupted."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.utilities.types import LRSchedulerConfig

from rnnorm.experiments.private_apis import callbacks_of
from rnnorm.experiments.recipe.label import differences
from rnnorm.experiments.recipe.recipe import read_config
from rnnorm.experiments.training import processes
from rnnorm.experiments.training.build import FILES, Experiment
from rnnorm.experiments.training.checkpoint import (
    check_resumable,
    check_same,
    newest_checkpoint,
)

#: data arguments that may change when a training resumes
RESUME_MAY_CHANGE = ("data_dir", *FILES, "eval_batch_size")
# trainer arguments that may not change
_LEARNING = (
    "accumulate_grad_batches",
    "fast_dev_run",
    "gradient_clip_algorithm",
    "gradient_clip_val",
    "limit_train_batches",
    "precision",
)
# callbacks that may not change: others watch, or take statistics
_LEARNING_CALLBACKS = (
    "rnnorm.lightning.SlopeAnnealing",
    "lightning.pytorch.callbacks.EMAWeightAveraging",
    "lightning.pytorch.callbacks.GradientAccumulationScheduler",
    "lightning.pytorch.callbacks.WeightAveraging",
)
#: marks a checkpoint without all gradients of its step, from which no training can resume
ACCUMULATING = "accumulating"


class StartingPoint(NamedTuple):
    """Where a training begins: at a checkpoint, or before its first step without one.

    Attributes:
        checkpoint: the checkpoint's file.
        step: the step of the checkpoint.
        random: what :class:`RandomState` kept in the checkpoint.
        samples: the number of sample texts of an epoch, or None if the checkpoint does not say.
    """

    checkpoint: Path | None = None
    step: int = 0
    random: Mapping[str, Any] = MappingProxyType({})
    samples: int | None = None


def starting_point(folder: Path, experiment: Experiment) -> StartingPoint:
    """Find the newest checkpoint of a run folder, and check that the training can resume there.

    Raises:
        ValueError: if the checkpoint is of another model or other data, or lacks a state, or the
            training has begun more epochs than it is now given.
    """
    try:
        path, state = newest_checkpoint(folder / "checkpoints")
    except FileNotFoundError:
        return StartingPoint()
    check_resumable(state, path)
    check_same(state, experiment.model, experiment.datamodule, path, free=RESUME_MAY_CHANGE)
    # an accumulating checkpoint precedes the first step: starting over loses nothing
    if state.get(ACCUMULATING):
        return StartingPoint()
    # Lightning counts the epochs that were whole before this one
    begun, given = state["epoch"] + 1, experiment.config["trainer"]["max_epochs"]
    if given is not None and 0 <= given < begun:
        raise ValueError(
            f"epochs must be at least {begun}, as the training in {folder} has begun that many, "
            f"got {given}"
        )
    kept = state["callbacks"]
    samples = kept.get("Samples", {}).get("count")
    return StartingPoint(path, state["global_step"], kept["RandomState"], samples)


def refuse_another_training(folder: Path, experiment: Experiment) -> None:
    """Refuse settings that may not change when a training resumes.

    Args:
        folder: the run folder of the training.
        experiment: the model, data and configuration to resume with.

    Raises:
        ValueError: if the model, data, seed, optimiser, schedule or trainer differ in what is
            learned or validated.
    """
    # building adds the defaults of arguments that later patches brought
    before, now = Experiment(read_config(folder / "config.yaml")).as_dict(), experiment.as_dict()
    compared = (
        ("trained", _learning),
        ("validated", _validated_batches),
        ("validated", _validated_rows),
    )
    for what, settings in compared:
        if other := list(
            differences(settings(before), settings(now), template="was {!r} and is {!r}")
        ):
            raise ValueError(
                f"the run in {folder} was {what} with other settings: {'; '.join(other)}, so begin "
                "a new training with another --run-dir"
            )


def _learning(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a whole configuration that determine what is learned."""
    data, trainer = config["data"], config["trainer"]
    # the seed of the data is linked to seed_everything
    given = {k: v for k, v in data["init_args"].items() if k not in (*RESUME_MAY_CHANGE, "seed")}
    callbacks = {c["class_path"]: c.get("init_args") for c in trainer["callbacks"] or []}
    return {
        "seed_everything": config["seed_everything"],
        "model": config["model"],
        "data": {**data, "init_args": given},
        "optimizer": config.get("optimizer"),
        "lr_scheduler": config.get("lr_scheduler"),
        "trainer": {
            **{name: trainer[name] for name in _LEARNING},
            "callbacks": {name: callbacks.get(name) for name in _LEARNING_CALLBACKS},
        },
    }


def _validated_batches(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the setting that says how many minibatches are validated, None for all."""
    limit = config["trainer"]["limit_val_batches"]
    whole = isinstance(limit, float) and limit == 1
    return {"trainer": {"limit_val_batches": None if whole else limit}}


def _validated_rows(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the size of the minibatches that are validated, if these are limited in number."""
    if not _validated_batches(config)["trainer"]["limit_val_batches"]:
        return {}
    size = config["data"]["init_args"].get("eval_batch_size")
    return {"data": {"init_args": {"eval_batch_size": size}}}


class RandomState(Callback):
    """Keeps the random states of Python, numpy and torch in the checkpoint.

    The checkpoint holds the states of every process, as each process draws its own noise.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the random states in plain types and tensors, to load without pickled code."""
        every = processes.gather(self._state())
        return every[0] if len(every) == 1 else {"processes": every}

    def _state(self) -> dict[str, Any]:
        version, internal, gauss = random.getstate()
        # seed_everything seeds numpy's global state
        numpy: Any = np.random.get_state()  # noqa: NPY002
        name, keys, position, has_gauss, cached = numpy
        return {
            "python": [version, list(internal), gauss],
            "numpy": [name, keys.tolist(), position, has_gauss, cached],
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the states until training starts, as setup may draw random numbers."""
        self._loaded = state_dict

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the random states, or give each process of a new training its own noise."""
        state, self._loaded = self._loaded, None
        if state is None:
            if trainer.global_rank:
                # all processes draw the same weights, but each its own noise
                torch.manual_seed(torch.initial_seed() + trainer.global_rank)
            return
        if "processes" in state:
            state = processes.of_this_process(state["processes"])
        version, internal, gauss = state["python"]
        random.setstate((version, tuple(internal), gauss))
        name, keys, position, has_gauss, cached = state["numpy"]
        numpy = (name, np.array(keys, np.uint32), position, has_gauss, cached)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(state["torch"])
        if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(state["cuda"])


_KEY = "plateaus"
#: the key of a checkpoint for what :func:`monitored` returns
MONITORED = "monitored"


class StepsOnPlateau(Callback):
    """Takes the steps of ``ReduceLROnPlateau`` that Lightning leaves out in a resumed training.

    Lightning leaves out the step at an epoch's end whose checkpoint is resumed, as the checkpoint
    is written before the step, and the step at the end of an epoch that is resumed in the middle.
    A step without a validation in its epoch takes the values of the last one, which a new process
    gets from the checkpoint.
    """

    def __init__(self) -> None:
        self._seen: list[float | None] = []
        self._monitored: dict[str, float] = {}
        self._steps_next = False

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that the steps of the last epoch are done."""
        self._steps_next = False

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the schedules' steps that Lightning leaves out, or note that Lightning will step."""
        if trainer.is_last_batch:
            self._steps_next = not trainer.fit_loop.restarting
            if not self._steps_next:
                _step(trainer, _values(trainer))

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the last monitored values, and those of steps that follow the checkpoint."""
        checkpoint[MONITORED] = monitored(trainer)
        if self._steps_next:
            checkpoint[_KEY] = _values(trainer)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the checkpoint's values until the schedules are loaded."""
        self._seen = checkpoint.get(_KEY, [])
        # older checkpoints lack the values
        self._monitored = checkpoint.get(MONITORED, {})

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the monitored values, and take the steps that the loaded checkpoint lacks."""
        for name, value in self._monitored.items():
            trainer.callback_metrics[name] = torch.tensor(value, dtype=torch.float64)
        if self._seen:
            _step(trainer, self._seen)
        self._seen = []


def _plateaus(trainer: Trainer) -> list[LRSchedulerConfig]:
    return [config for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]


def monitored(trainer: Trainer) -> dict[str, float]:
    """Return the last value of each logged metric that a ``ReduceLROnPlateau`` monitors."""
    names = [config.monitor or "" for config in _plateaus(trainer)]
    pairs = zip(names, _values(trainer), strict=True)
    return {name: value for name, value in pairs if value is not None}


def _values(trainer: Trainer) -> list[float | None]:
    """Return the monitored value of each ``ReduceLROnPlateau``, or None if not logged."""
    found = [trainer.callback_metrics.get(config.monitor or "") for config in _plateaus(trainer)]
    return [None if value is None else float(value) for value in found]


def _step(trainer: Trainer, values: list[float | None]) -> None:
    for config, value in zip(_plateaus(trainer), values, strict=True):
        if value is not None:
            trainer.lightning_module.lr_scheduler_step(config.scheduler, value)


def accumulating(trainer: Trainer) -> bool:
    """Return whether this minibatch's gradients wait for those of the next minibatch."""
    together = trainer.accumulate_grad_batches
    return (trainer.fit_loop.batch_idx + 1) % together != 0 and not trainer.is_last_batch


class AccumulateAsScheduled(Callback):
    """Lets a training that is resumed within an epoch accumulate as its schedule says.

    Lightning's scheduler acts only at the start of an epoch.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Apply the accumulation schedule to the resumed epoch."""
        for scheduler in callbacks_of(trainer, GradientAccumulationScheduler):
            scheduler.on_train_epoch_start(trainer)
