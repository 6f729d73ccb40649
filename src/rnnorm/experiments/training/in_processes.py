"""What model, data, trainer and checkpoint need where several processes train."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher

from rnnorm import synchronize
from rnnorm.experiments.training.building import Built


def prepare_processes(built: Built, trainer: Trainer) -> None:
    """Let model and data train in the trainer's processes, where there are several.

    Raises:
        ValueError: they do not train by Lightning's strategy ``ddp``, or the model or the data
            cannot be in so many.
    """
    if trainer.world_size == 1:
        return
    launcher = trainer.strategy.launcher
    if type(trainer.strategy) is not DDPStrategy or (
        launcher is not None and not isinstance(launcher, _SubprocessScriptLauncher)
    ):
        given = built.config_init["trainer"]["strategy"]
        raise ValueError(f"trainer.strategy must be ddp with several devices, got {given}")
    if not getattr(built.model, "in_processes", False):
        name = type(built.model).__name__
        raise ValueError(f"trainer.devices must be 1 for {name}, got {trainer.world_size}")
    if check := getattr(built.datamodule, "check_processes", None):
        check(trainer.world_size)
    if (
        built.model.hparams.get("learn_initial_state")
        and built.datamodule.hparams.get("windows") == "carried"
    ):
        # windows that go on from the one before do not use the initial state
        trainer.strategy._ddp_kwargs["find_unused_parameters"] = True
    synchronize(built.model)


def check_processes(random: Mapping[str, Any], path: Path, count: int) -> None:
    """Refuse a checkpoint's random states, of a training with another number of processes.

    Raises:
        ValueError: it has another one.
    """
    trained = len(random.get("processes", [None]))
    if trained != count:
        raise ValueError(
            f"{path} is of a training with {trained} processes, and this has {count}: each has a "
            "random state of its own, so go on with as many (--trainer.devices, "
            "--trainer.num_nodes)"
        )
