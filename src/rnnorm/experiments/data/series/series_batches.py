"""Minibatches of time series of different lengths."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rnnorm.experiments.data.resumable import Resumable, minibatches
from rnnorm.experiments.data.series.series import Series


class SeriesBatch(NamedTuple):
    """A right-padded minibatch.

    Attributes:
        x: values ``(T, B, F)``, or symbols ``(T, B)``.
        lengths: steps of each series ``(B,)``.
        y: its class ``(B,)``.
    """

    x: Tensor
    lengths: Tensor
    y: Tensor


class SeriesBatches(Resumable[SeriesBatch]):
    """Minibatches of random series, or, without a seed, in the order of the data.

    Args:
        series: what to read.
        batch_size: rows of a minibatch. One row that is left over joins the minibatch before it:
            batch statistics want rows.
        seed: seed of the order, or None for the order of the data.
    """

    def __init__(self, series: Series, batch_size: int, seed: int | None = None) -> None:
        super().__init__(seed)
        self.series, self.batch_size = series, batch_size

    def __len__(self) -> int:
        """Number of minibatches of an epoch."""
        return minibatches(len(self.series.y), self.batch_size)

    def draw(self) -> list[int]:
        """Which series comes when in this epoch."""
        rows = len(self.series.y)
        return list(range(rows)) if self.seed is None else self.random().permutation(rows).tolist()

    def batch(self, number: int, drawn: list[int]) -> SeriesBatch:
        """A minibatch of this order."""
        start = number * self.batch_size
        rows = drawn[start : start + self.batch_size if number + 1 < len(self) else None]
        x, y = self.series.rows(rows)
        return SeriesBatch(pad_sequence(x), torch.tensor([len(each) for each in x]), y)
