"""A training's end after a number of steps."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class StopAfter(Callback):
    """Ends the training after so many steps.

    Instead of the trainer's ``max_steps``, with which Lightning counts an epoch twice when it
    resumes at its end.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take no step if a resumed training has done them all."""
        trainer.should_stop = trainer.global_step >= self._steps

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Count."""
        trainer.should_stop = trainer.should_stop or trainer.global_step >= self._steps
