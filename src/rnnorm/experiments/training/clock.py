"""How long a training takes: its seconds in steps, and its end after a number of steps."""

from __future__ import annotations

import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from rnnorm.experiments.private_apis import end_training


class Clock(Callback):
    """Counts the seconds of all training steps so far, across interruptions too.

    Validation, logging and checkpoints do not count, so that the times of models compare.

    Attributes:
        seconds: time spent in the steps, in seconds.
        steps: number of steps, of several minibatches each where gradients are accumulated.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.steps = 0
        self._start = 0.0

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Note the time at which the step starts."""
        self._start = _now(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Add the duration of the step."""
        self.seconds += _now(trainer) - self._start
        self.steps = trainer.global_step

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds and steps for a checkpoint."""
        return {"seconds": self.seconds, "steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the seconds and steps of a checkpoint."""
        self.seconds, self.steps = state_dict["seconds"], state_dict["steps"]


def _now(trainer: Trainer) -> float:
    module: LightningModule = trainer.lightning_module
    if module.device.type == "cuda":
        torch.cuda.synchronize(module.device)
    return time.perf_counter()


class StopAfter(Callback):
    """Ends the training after a number of steps.

    Replaces the trainer's ``max_steps``, with which Lightning counts an epoch twice when a training
    resumes at the epoch's end.

    Args:
        steps: number of steps, including those before an interruption.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take no step if a resumed training has done them all."""
        self.on_train_batch_end(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """End the training once all steps are taken."""
        if trainer.global_step >= self.steps:
            end_training(trainer)
