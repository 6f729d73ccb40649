"""When a checkpoint is written, and which ones are kept."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from rnnorm.experiments.training.resume import accumulating
from rnnorm.experiments.training.run_names import BEST, LAST, PREVIOUS
from rnnorm.experiments.training.score import Score
from rnnorm.experiments.training.signals import StopSignals

# key of a checkpoint whose model lacks gradients of its step: no training goes on from it
ACCUMULATING = "accumulating"


class KeepLastAndBest(Checkpoint):
    """Keeps ``last.ckpt``, from which training resumes, the one before it, and ``best.ckpt``.

    ``last.ckpt`` is written every so many steps, at the end of every epoch, before the last step
    of an epoch or before another one that a validation follows, and when a signal stops the
    training. A training that is stopped within a validation goes back one step: no checkpoint is
    written between a step and its validation, since a resumed training would leave it out. Nor is
    one between minibatches whose gradients are accumulated, which it does not hold.

    A validation that ends the training within an epoch is no part of a training that goes on:
    ``last.ckpt`` is written after it, with the state before it and the best score after it. Any
    may end it, so that the state is copied before each within an epoch.

    What is logged of a step or an epoch is logged before its checkpoint, so that a kill between the
    two costs no line of ``metrics.csv``: lines of steps that the checkpoint lacks are dropped by
    the training that goes on, and lines that are missing would stay so.

    Args:
        folder: where they are.
        score: the metric of ``best.ckpt``, on the validation set.
        every_n_steps: save ``last.ckpt`` this often.
        signals: what stops the training, after a step.

    Attributes:
        folder, signals: as given.
        best: the best value so far.
        best_epoch: its epoch, counted from 1.
        best_step: its step; None before there is one, and of a checkpoint that does not say.
        step: the step of ``last.ckpt``, None while there is none.
        broken: whether there is a ``last.ckpt`` that cannot be read.
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
        # as a step within an epoch left it, before the validation that may end the training
        self._ended: dict[str, Any] | None = None

    def on_train_batch_start(self, *_: Any) -> None:
        """Go on: the validation before this step has not ended the training."""
        self._ended = None

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Save after every so many steps, and keep what there is where training may end."""
        if accumulating(trainer):
            return
        self.signals.agree()
        regular = trainer.global_step % self.every_n_steps == 0 or self.signals.came is not None
        ahead = range(1, trainer.accumulate_grad_batches + 1)
        due = regular or any(_validates_in(count, trainer) for count in ahead)
        due = due and not _validates_in(0, trainer)
        # the last step of an epoch is left to the epoch's end, after validation
        if not trainer.is_last_batch:
            if trainer.fit_loop.done or _validates_in(0, trainer):
                # validation may change statistics in place
                self._ended = copy.deepcopy(trainer._checkpoint_connector.dump_checkpoint())
            elif due:
                self._save_last(trainer)
        self.signals.check()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save what has the best score so far."""
        value = trainer.callback_metrics.get(f"val/{self.score.name}")
        if value is not None and not trainer.sanity_checking and self._is_better(float(value)):
            self.best, self.best_epoch = float(value), trainer.current_epoch + 1
            self.best_step = trainer.global_step
            trainer.save_checkpoint(self.folder / BEST)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save after validation."""
        self.signals.agree()
        # an epoch that was cut short would count as a whole one when it is resumed
        if trainer.is_last_batch or self._ended is not None:
            self._save_last(trainer)
        self.signals.check()

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Mark the best checkpoint of a validation between accumulated minibatches."""
        if accumulating(trainer):
            checkpoint[ACCUMULATING] = True

    def _save_last(self, trainer: Trainer) -> None:
        _log(trainer)
        # a broken one must not take the place of the whole one before it
        keep = None if self.broken else self.folder / PREVIOUS
        if self._ended is None:
            trainer.save_checkpoint(self.folder / LAST, storage_options=keep)
        else:
            self._ended["callbacks"][self.state_key] = self.state_dict()
            trainer.strategy.save_checkpoint(self._ended, self.folder / LAST, storage_options=keep)
        self.step, self.broken = trainer.global_step, False

    def _is_better(self, value: float) -> bool:
        # nothing compares with nan: as the first value it would stay the best
        if not math.isfinite(value):
            return False
        if self.best is None:
            return True
        return value > self.best if self.score.mode == "max" else value < self.best

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"best": self.best, "best_epoch": self.best_epoch, "best_step": self.best_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.best, self.best_epoch = state_dict["best"], state_dict["best_epoch"]
        # an older checkpoint does not say
        self.best_step = state_dict.get("best_step")


def _log(trainer: Trainer) -> None:
    """Log what Lightning logs after the hook that this is called in, and there no more."""
    connector, loop = trainer._logger_connector, trainer.fit_loop.epoch_loop
    if connector._first_loop_iter is None:
        connector.on_epoch_end()
        # as Lightning does it: an epoch's numbers are of its last step
        loop._batches_that_stepped -= 1
        connector.update_train_epoch_metrics()
        loop._batches_that_stepped += 1
        return
    connector.on_batch_end()
    connector.update_train_step_metrics()
    for logged in loop._results.values():
        logged._forward_cache = None


def _validates_in(more: int, trainer: Trainer) -> bool:
    """Whether a validation or the end of the epoch comes so many minibatches after this one."""
    loop = trainer.fit_loop
    done = loop.batch_idx + 1 + more
    if done == trainer.num_training_batches:
        return True
    # without epochs between them, validations are counted over all steps
    count = loop.total_batch_idx + 1 + more if trainer.check_val_every_n_epoch is None else done
    every = trainer.val_check_batch
    return every is not None and count % every == 0
