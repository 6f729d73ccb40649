"""The steps of a schedule on a plateau that Lightning leaves out when it resumes."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.types import LRSchedulerConfig

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
