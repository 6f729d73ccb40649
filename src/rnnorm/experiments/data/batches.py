"""Minibatches of sequences held in memory, in an order that can be taken up again anywhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rnnorm.experiments.data.resumable import Minibatches


class Batches(Minibatches[tuple[Tensor, Tensor]]):
    """Iterates over minibatches ``(x, y)``, ``x`` of shape ``(T, B, I)`` and ``y`` ``(B,)``.

    The order is a function of the seed and the epoch alone. A loop that was stopped after some
    batches goes on with the next one after :meth:`load_state_dict`.

    Args:
        x: sequences ``(N, T, I)``.
        y: classes ``(N,)``.
        batch_size: rows of a minibatch; the last one of an epoch may have fewer. A single row
            that is left over joins the minibatch before it.
        seed: seed of the order, or None for the order in which the data stands.
    """

    def __init__(self, x: Tensor, y: Tensor, batch_size: int, seed: int | None = None) -> None:
        super().__init__(len(y), batch_size, seed)
        self.x, self.y = x, y

    def batch(self, number: int, drawn: list[NDArray[np.int64]]) -> tuple[Tensor, Tensor]:
        """A minibatch of this order."""
        rows = drawn[number].tolist()
        return self.x[rows].transpose(0, 1).contiguous(), self.y[rows]
