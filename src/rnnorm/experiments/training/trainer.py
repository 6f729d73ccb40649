"""Find the callbacks of Lightning's trainer, and end its training after some steps."""

from __future__ import annotations

from typing import Any, TypeVar

from lightning.pytorch import Callback, LightningModule, Trainer

Kind = TypeVar("Kind", bound=Callback)


def callbacks_of(trainer: Trainer, kind: type[Kind]) -> list[Kind]:
    """Return the trainer's callbacks of a class, in the order of their calls."""
    own: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return [callback for callback in own if isinstance(callback, kind)]


def end_training(trainer: Trainer) -> None:
    """End a training, even if ``min_epochs`` or ``min_steps`` ask for more."""
    trainer.should_stop = True
    trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None


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
