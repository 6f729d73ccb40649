"""Minibatches of sequences of similar length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rnnorm.experiments.data.resumable import Batch, Minibatches

# by how much of itself a sequence may be taken for longer or shorter
_LOOSE = 0.1


class SimilarLengths(Minibatches[Batch]):
    """Minibatches of sequences of similar length; every sequence is in one of them.

    With a seed, lengths are compared after each was changed by up to a tenth at random, and the
    minibatches come in random order.

    Args:
        lengths: of all sequences.
        batch_size: rows of a minibatch. One row that is left over joins the minibatch before it:
            batch statistics want rows.
        seed: seed of the order, or None for the order of the lengths.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int | None = None) -> None:
        super().__init__(len(lengths), batch_size, seed)
        self.lengths = np.array(lengths, np.int64)

    def draw(self) -> list[NDArray[np.int64]]:
        """Which sequences stand in each minibatch of this epoch."""
        if self.seed is None:
            return self.cut(np.argsort(self.lengths, kind="stable"))
        random = self.random()
        lengths = self.lengths * random.uniform(1 - _LOOSE, 1 + _LOOSE, len(self.lengths))
        batches = self.cut(np.argsort(lengths, kind="stable"))
        return [batches[i] for i in random.permutation(len(batches))]
