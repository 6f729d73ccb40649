"""Tests with the statistics of the minibatch itself, as in training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from rnnorm.diagnostics import batch_statistics


class BatchStatistics(Callback):
    """Tests with those of each minibatch: the trainer puts the whole model into evaluation."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Switch them on."""
        self._stack.enter_context(batch_statistics(pl_module))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Switch them off."""
        self._stack.close()


class SeveralRows:
    """The minibatches of a loader that have rows enough for statistics.

    Args:
        loader: minibatches whose first element is ``(T, B, ...)``.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        """In the loader's order."""
        return (batch for batch in self.loader if batch[0].shape[1] >= 2)
