"""What a training says while it runs: a bar on a terminal, a line for every epoch anywhere."""

from __future__ import annotations

import sys
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar

from rnnorm.experiments.training.clock import Clock
from rnnorm.experiments.training.score import score_of


def progress_bars() -> list[Callback]:
    """A bar, on a terminal alone."""
    return [TQDMProgressBar()] if sys.stderr.isatty() else []


class ProgressLines(Callback):
    """Prints a line at the end of every epoch, and one a minute without a terminal.

    Args:
        clock: counts the time of the training steps.
        every_seconds: how often a line is printed within an epoch where there is no bar.
    """

    def __init__(self, clock: Clock, every_seconds: float = 60.0) -> None:
        self._clock = clock
        self._every = every_seconds
        self._printed = time.monotonic()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Print where it stands."""
        if sys.stderr.isatty() or time.monotonic() - self._printed < self._every:
            return
        step = trainer.fit_loop.batch_idx + 1
        self._print(trainer, f"step {step}/{trainer.num_training_batches}", "train/loss")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the epoch's results."""
        names = dict.fromkeys(("train/loss", "val/loss", f"val/{score_of(pl_module).name}"))
        self._print(trainer, f"{trainer.global_step} steps", *names)

    def _print(self, trainer: Trainer, where: str, *names: str) -> None:
        self._printed = time.monotonic()
        metrics = trainer.callback_metrics
        values = [f"{n} {float(metrics[n]):.4g}" for n in names if n in metrics]
        epochs = trainer.max_epochs if (trainer.max_epochs or -1) > 0 else "?"
        milliseconds = 1000 * self._clock.seconds / max(self._clock.steps, 1)
        line = ", ".join(
            [
                f"epoch {trainer.current_epoch + 1}/{epochs}",
                where,
                *values,
                f"{milliseconds:.1f} ms a step",
            ]
        )
        bar = trainer.progress_bar_callback
        if isinstance(bar, TQDMProgressBar) and sys.stderr.isatty():
            bar.print(line)
        else:
            print(line, flush=True)
