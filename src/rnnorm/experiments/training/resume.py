"""What makes a resumed training the same as one that was never interrupted."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.utilities.types import LRSchedulerConfig

from rnnorm.experiments.recipe.label import differences
from rnnorm.experiments.recipe.recipe import read_config
from rnnorm.experiments.training import processes
from rnnorm.experiments.training.build import FILES, Built
from rnnorm.experiments.training.trainer import callbacks_of

#: arguments of data that may change when a training goes on
FREE = ("data_dir", *FILES, "eval_batch_size")
# what of the trainer may not
_LEARNING = (
    "accumulate_grad_batches",
    "fast_dev_run",
    "gradient_clip_algorithm",
    "gradient_clip_val",
    "limit_train_batches",
    "precision",
)
# which of its callbacks may not: others watch, or take statistics
_LEARNING_CALLBACKS = (
    "rnnorm.lightning.SlopeAnnealing",
    "lightning.pytorch.callbacks.EMAWeightAveraging",
    "lightning.pytorch.callbacks.GradientAccumulationScheduler",
    "lightning.pytorch.callbacks.WeightAveraging",
)


def refuse_another_training(folder: Path, built: Built) -> None:
    """Refuse what a checkpoint would undo, and ``run.json`` would not tell where there is none.

    Args:
        folder: of the run that goes on.
        built: as it is to go on.

    Raises:
        ValueError: model, data, seed, optimiser, schedule or trainer learn otherwise.
    """
    # built, it has the defaults of arguments that a later patch has added
    before, now = Built(read_config(folder / "config.yaml")).as_dict(), built.as_dict()
    if other := list(
        differences(_learning(before), _learning(now), template="was {!r} and is {!r}")
    ):
        raise ValueError(
            f"the run in {folder} was trained otherwise: {'; '.join(other)}, so begin a new "
            "training with another --run-dir"
        )


def _learning(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a whole configuration says about what learns, from which data, and how."""
    data, trainer = config["data"], config["trainer"]
    # that of the data is the one of all
    given = {k: v for k, v in data["init_args"].items() if k not in (*FREE, "seed")}
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


class RandomState(Callback):
    """Keeps the states of the random numbers of Python, numpy and torch in the checkpoint.

    Those of every process: each has noise of its own.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """The states, in plain types and tensors: ``torch.load`` needs no pickled code."""
        every = processes.gather(self._state())
        return every[0] if len(every) == 1 else {"processes": every}

    def _state(self) -> dict[str, Any]:
        version, internal, gauss = random.getstate()
        # numpy's global state, which is what seed_everything seeds
        numpy: Any = np.random.get_state()  # noqa: NPY002
        name, keys, position, has_gauss, cached = numpy
        return {
            "python": [version, list(internal), gauss],
            "numpy": [name, keys.tolist(), position, has_gauss, cached],
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep them until training starts: what comes before may draw numbers of its own."""
        self._loaded = state_dict

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore them, in the last hook before the next step."""
        state, self._loaded = self._loaded, None
        if state is None:
            if trainer.global_rank:
                # weights were drawn alike, noise is not
                torch.manual_seed(torch.initial_seed() + trainer.global_rank)
            return
        if "processes" in state:
            state = processes.own_part(state["processes"])
        version, internal, gauss = state["python"]
        random.setstate((version, tuple(internal), gauss))
        name, keys, position, has_gauss, cached = state["numpy"]
        numpy = (name, np.array(keys, np.uint32), position, has_gauss, cached)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(state["torch"])
        if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(state["cuda"])


_KEY = "plateaus"


class StepsOnPlateau(Callback):
    """Takes the steps of ``ReduceLROnPlateau`` that Lightning leaves out in a resumed training.

    These are the one at an epoch's end from which it is resumed, since its checkpoint is written
    before that step, and the one at the end of an epoch in whose middle it is resumed.
    """

    def __init__(self) -> None:
        self._seen: list[float | None] = []
        self._steps_next = False

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The steps of the epoch before have been taken."""
        self._steps_next = False

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Step where Lightning will not; where it will, after a checkpoint, keep what it sees."""
        if trainer.is_last_batch:
            self._steps_next = not trainer.fit_loop.restarting
            if not self._steps_next:
                _step(trainer, _values(trainer))

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep what the schedules see after it."""
        if self._steps_next:
            checkpoint[_KEY] = _values(trainer)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Wait for the schedules, which are loaded later."""
        self._seen = checkpoint.get(_KEY, [])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show it to them."""
        if self._seen:
            _step(trainer, self._seen)
        self._seen = []


def _plateaus(trainer: Trainer) -> list[LRSchedulerConfig]:
    return [config for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]


def _values(trainer: Trainer) -> list[float | None]:
    """What each schedule on a plateau looks at."""
    found = [trainer.callback_metrics.get(config.monitor or "") for config in _plateaus(trainer)]
    return [None if value is None else float(value) for value in found]


def _step(trainer: Trainer, values: list[float | None]) -> None:
    for config, value in zip(_plateaus(trainer), values, strict=True):
        if value is not None:
            trainer.lightning_module.lr_scheduler_step(config.scheduler, value)


def accumulating(trainer: Trainer) -> bool:
    """Whether gradients of this minibatch wait for those of the next."""
    together = trainer.accumulate_grad_batches
    return (trainer.fit_loop.batch_idx + 1) % together != 0 and not trainer.is_last_batch


class AccumulateAsScheduled(Callback):
    """Lets a training that is resumed within an epoch accumulate as its schedule says.

    Lightning's scheduler looks at the start of an epoch alone.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Call it for the epoch that goes on."""
        for scheduler in callbacks_of(trainer, GradientAccumulationScheduler):
            scheduler.on_train_epoch_start(trainer)
