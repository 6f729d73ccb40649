"""Decide when a checkpoint is written, and which checkpoints are kept."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from rnnorm.experiments.private_apis import dump_checkpoint, log_now
from rnnorm.experiments.training.resume import ACCUMULATING, accumulating
from rnnorm.experiments.training.run_names import BEST, LAST, PREVIOUS
from rnnorm.experiments.training.score import Score
from rnnorm.experiments.training.signals import StopSignals


class KeepLastAndBest(Checkpoint):
    """Keeps ``last.ckpt``, from which training resumes, ``previous.ckpt`` and ``best.ckpt``.

    ``last.ckpt`` is written every ``every_n_steps`` steps, at the end of every epoch, before any
    step that a validation or the end of an epoch follows, and when a signal stops the training.
    A training that is stopped within a validation goes back one step: no checkpoint is written
    between a step and its validation, since a resumed training would skip the validation. Nor is
    one written between minibatches of accumulated gradients, which checkpoints do not hold.

    If a training ends with a validation within an epoch, ``last.ckpt`` holds the state that a
    longer training would have: the state before the validation with the best score after it, or,
    where ``val_check_interval`` had a validation anyway, the state after it. As any validation
    within an epoch may end the training, the state is copied at each.

    The metrics of a step or an epoch are logged before its checkpoint, so that a kill between the
    two costs no line of ``metrics.csv``: a resumed training drops lines of later steps, but cannot
    add missing lines.

    Args:
        folder: the folder of the checkpoints.
        score: the metric of ``best.ckpt``, on the validation set.
        every_n_steps: steps between two ``last.ckpt``.
        signals: stop the training after a step.

    Attributes:
        folder, signals: as given.
        best: the best score so far, or None.
        best_epoch: epoch of the best score, counted from 1.
        best_step: step of the best score, or None if unknown.
        step: the step of ``last.ckpt``, or None before the first one.
        broken: whether ``last.ckpt`` exists but cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        score: Score,
        every_n_steps: int = 100,
        signals: StopSignals | None = None,
    ) -> None:
        self.folder = folder
        self.every_n_steps = every_n_steps
        self.score = score
        self.best: float | None = None
        self.best_epoch = 0
        self.best_step: int | None = None
        self.step: int | None = None
        self.broken = False
        self.signals = signals or StopSignals(folder)
        # the state at a validation within an epoch, which may end the training
        self._ended: dict[str, Any] | None = None

    def on_train_batch_start(self, *_: Any) -> None:
        """Drop the copied state: the last validation has not ended the training."""
        self._ended = None

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Save ``last.ckpt`` if due, or copy the state where a validation may end the training."""
        if accumulating(trainer):
            return
        self.signals.agree()
        regular = trainer.global_step % self.every_n_steps == 0 or self.signals.came is not None
        ahead = range(1, trainer.accumulate_grad_batches + 1)
        due = regular or any(_validates_in(count, trainer) for count in ahead)
        due = due and not _validates_in(0, trainer)
        # on_train_epoch_end saves the last step of an epoch, after its validation
        if not trainer.is_last_batch:
            if trainer.fit_loop.done or _validates_in(0, trainer):
                # validation may change statistics in place
                self._ended = copy.deepcopy(dump_checkpoint(trainer))
            elif due:
                self._save_last(trainer)
        self.signals.check()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save ``best.ckpt`` if the score is the best so far, and copy the state where due."""
        value = self.score.validated(trainer.callback_metrics)
        if value is not None and not trainer.sanity_checking and self._is_better(value):
            self.best, self.best_epoch = value, trainer.current_epoch + 1
            self.best_step = trainer.global_step
            trainer.save_checkpoint(self.folder / BEST)
        if self._ended is not None and _validates_in(0, trainer):
            self._ended = copy.deepcopy(dump_checkpoint(trainer))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save ``last.ckpt`` after the epoch's validation."""
        self.signals.agree()
        # a resumed training would count an epoch that was cut short as a whole one
        if trainer.is_last_batch or self._ended is not None:
            self._save_last(trainer)
        self.signals.check()

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Mark a checkpoint that is written between accumulated minibatches."""
        if accumulating(trainer):
            checkpoint[ACCUMULATING] = True

    def _save_last(self, trainer: Trainer) -> None:
        log_now(trainer)
        # a broken last.ckpt must not replace a whole previous.ckpt
        keep = None if self.broken else self.folder / PREVIOUS
        if self._ended is None:
            trainer.save_checkpoint(self.folder / LAST, storage_options=keep)
        else:
            self._ended["callbacks"][self.state_key] = self.state_dict()
            trainer.strategy.save_checkpoint(self._ended, self.folder / LAST, storage_options=keep)
        self.step, self.broken = trainer.global_step, False

    def _is_better(self, value: float) -> bool:
        # a first value of nan would stay the best, as every comparison with nan is false
        if not math.isfinite(value):
            return False
        return self.best is None or self.score.sign * value > self.score.sign * self.best

    def state_dict(self) -> dict[str, Any]:
        """Return the best score, its epoch and its step for a checkpoint."""
        return {"best": self.best, "best_epoch": self.best_epoch, "best_step": self.best_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best score, its epoch and its step from a checkpoint."""
        self.best, self.best_epoch = state_dict["best"], state_dict["best_epoch"]
        # older checkpoints lack the step
        self.best_step = state_dict.get("best_step")


def _validates_in(more: int, trainer: Trainer) -> bool:
    """Return whether a validation or the epoch's end comes ``more`` minibatches after this one."""
    loop = trainer.fit_loop
    done = loop.batch_idx + 1 + more
    if done == trainer.num_training_batches:
        return True
    # with check_val_every_n_epoch=None, Lightning counts over all epochs
    count = loop.total_batch_idx + 1 + more if trainer.check_val_every_n_epoch is None else done
    every = trainer.val_check_batch
    return every is not None and count % every == 0
