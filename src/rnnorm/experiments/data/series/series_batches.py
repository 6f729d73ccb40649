"""Minibatches of time series of different lengths."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rnnorm.experiments.data.resumable import Minibatches
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


class SeriesBatches(Minibatches[SeriesBatch]):
    """Minibatches of random series, or, without a seed, in the order of the data.

    Args:
        series: what to read.
        batch_size: rows of a minibatch. One row that is left over joins the minibatch before it:
            batch statistics want rows.
        seed: seed of the order, or None for the order of the data.
    """

    def __init__(self, series: Series, batch_size: int, seed: int | None = None) -> None:
        super().__init__(len(series.y), batch_size, seed)
        self.series = series

    def batch(self, number: int, drawn: list[NDArray[np.int64]]) -> SeriesBatch:
        """A minibatch of this order."""
        x, y = self.series.rows(drawn[number].tolist())
        return SeriesBatch(pad_sequence(x), torch.tensor([len(each) for each in x]), y)
