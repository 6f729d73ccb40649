"""Gradients of several minibatches that make one step."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler

from rnnorm.experiments.training.callbacks_of import callbacks_of


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
