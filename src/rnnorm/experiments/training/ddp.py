"""Check and prepare the trainer of a training in one process or in several."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.strategies import DDPStrategy

from rnnorm import synchronize
from rnnorm.experiments.private_apis import find_unused_parameters, is_plain_launcher
from rnnorm.experiments.training.build import Experiment


def prepare_processes(experiment: Experiment, trainer: Trainer) -> None:
    """Prepare the model and data for the trainer's processes if there are several.

    Raises:
        ValueError: if the strategy is not Lightning's ``ddp``, or the model or the data cannot
            train in so many processes.
    """
    if trainer.world_size == 1:
        return
    launcher = trainer.strategy.launcher
    if type(trainer.strategy) is not DDPStrategy or (
        launcher is not None and not is_plain_launcher(launcher)
    ):
        given = experiment.config_init["trainer"]["strategy"]
        raise ValueError(f"trainer.strategy must be ddp with several devices, got {given}")
    if not getattr(experiment.model, "in_processes", False):
        name = type(experiment.model).__name__
        raise ValueError(f"trainer.devices must be 1 for {name}, got {trainer.world_size}")
    if check := getattr(experiment.datamodule, "check_processes", None):
        check(trainer.world_size)
    if (
        experiment.model.hparams.get("learn_initial_state")
        and experiment.datamodule.hparams.get("windows") == "carried"
    ):
        # carried windows do not use the initial state, so it gets no gradient
        find_unused_parameters(trainer.strategy)
    synchronize(experiment.model)


def check_processes(random: Mapping[str, Any], path: Path, count: int) -> None:
    """Check that a checkpoint has the random states of as many processes as train now.

    Raises:
        ValueError: if the checkpoint is of another number of processes.
    """
    trained = len(random.get("processes", [None]))
    if trained != count:
        raise ValueError(
            f"{path} is of a training with {trained} processes, and this has {count}: each has a "
            "random state of its own, so resume with as many (--trainer.devices, "
            "--trainer.num_nodes)"
        )


# may not be 0; below 0 the ends mean no limit, the counts nothing
_ENDS = ("max_epochs", "max_steps")
_COUNTS = (
    "accumulate_grad_batches",
    "check_val_every_n_epoch",
    "limit_train_batches",
    "val_check_interval",
)
# callbacks that change a setting after it is recorded, and the option that sets it
_FINDERS = ((BatchSizeFinder, "--batch-size N"), (LearningRateFinder, "--lr X"))


def refuse_trainer(experiment: Experiment) -> None:
    """Refuse trainer arguments with which no training can run or resume.

    The refused arguments take no step, write no checkpoint, make Lightning divide by zero, cannot
    clip gradients, keep averages outside of checkpoints, accumulate minibatches with LBFGS, change
    the batch size or the learning rate after they are recorded, or draw other ``overfit_batches``
    in each epoch.

    Raises:
        ValueError: if an argument is refused; the message names the argument.
    """
    given = experiment.config_init["trainer"]
    if any(isinstance(c, StochasticWeightAveraging) for c in given["callbacks"] or []):
        raise ValueError(
            "trainer.callbacks may not hold StochasticWeightAveraging, which averages only after "
            "the last checkpoint: take lightning.pytorch.callbacks.EMAWeightAveraging, which every "
            "checkpoint holds"
        )
    for kind, option in _FINDERS:
        if any(isinstance(c, kind) for c in given["callbacks"] or []):
            raise ValueError(
                f"trainer.callbacks may not hold {kind.__name__}, whose finding would not be in "
                f"config.yaml, from which a training resumes: choose it, and give it by {option}"
            )
    for name in (*_ENDS, *_COUNTS):
        value = given[name]
        counted = isinstance(value, int | float)
        if counted and (value == 0 or (value < 0 and name in _COUNTS)):
            raise ValueError(f"trainer.{name} must be above 0 in a training, got {value}")
    if given["barebones"]:
        raise ValueError(
            "trainer.barebones must be false, got true: a training writes checkpoints and metrics"
        )
    if few := given["overfit_batches"]:
        raise ValueError(
            f"trainer.overfit_batches must be 0, got {few}: each epoch has another order, so it "
            "would not take the same minibatches"
        )
    own = experiment.config_init.get("optimizer")
    accumulates = given["accumulate_grad_batches"] > 1 or any(
        isinstance(c, GradientAccumulationScheduler) for c in given["callbacks"] or []
    )
    if accumulates and own and own.class_path.endswith(".LBFGS"):
        raise ValueError(
            "minibatches cannot be accumulated with LBFGS, which evaluates the loss several times "
            "a step, and Lightning would evaluate only the last minibatch again: leave out "
            "trainer.accumulate_grad_batches and GradientAccumulationScheduler"
        )
    try:
        Timer(given["max_time"])
    except MisconfigurationException:
        raise ValueError(
            f"trainer.max_time must be of the form DD:HH:MM:SS, got {given['max_time']!r}"
        ) from None
    clip = given["gradient_clip_val"]
    if clip is not None and not clip >= 0:
        raise ValueError(f"trainer.gradient_clip_val must be 0 (no clipping) or above, got {clip}")
