"""Lightning's trainer: its callbacks of one kind, and its end after a number of steps."""

from __future__ import annotations

from typing import Any, TypeVar

from lightning.pytorch import Callback, LightningModule, Trainer

Kind = TypeVar("Kind", bound=Callback)


def callbacks_of(trainer: Trainer, kind: type[Kind]) -> list[Kind]:
    """Those that are instances of a class, in the order in which they are called."""
    own: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return [callback for callback in own if isinstance(callback, kind)]


def end_training(trainer: Trainer) -> None:
    """End a training whose budget is used up, even one that asks for more epochs or steps."""
    trainer.should_stop = True
    trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None


class StopAfter(Callback):
    """Ends the training after so many steps.

    Instead of the trainer's ``max_steps``, with which Lightning counts an epoch twice when it
    resumes at its end.

    Args:
        steps: how many, those before an interruption included.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take no step if a resumed training has done them all."""
        self.on_train_batch_end(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Count."""
        if trainer.global_step >= self.steps:
            end_training(trainer)
