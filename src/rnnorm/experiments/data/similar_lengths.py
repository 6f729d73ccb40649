"""Minibatches of sequences of similar length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rnnorm.experiments.data.resumable import Batch, Resumable, fewest_rows, minibatches

# by how much of itself a sequence may be taken for longer or shorter
_LOOSE = 0.1


class SimilarLengths(Resumable[Batch]):
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
        super().__init__(seed)
        self.lengths, self.batch_size = np.array(lengths, np.int64), batch_size

    def __len__(self) -> int:
        """Number of minibatches of an epoch."""
        return minibatches(len(self.lengths), self.batch_size)

    def fewest_rows(self) -> int:
        """Rows of an epoch's smallest minibatch."""
        return fewest_rows(len(self.lengths), self.batch_size, len(self))

    def draw(self) -> list[NDArray[np.intp]]:
        """Which sequences stand in each minibatch of this epoch."""
        cuts = np.arange(1, len(self)) * self.batch_size
        if self.seed is None:
            return np.split(np.argsort(self.lengths, kind="stable"), cuts)
        random = self.random()
        lengths = self.lengths * random.uniform(1 - _LOOSE, 1 + _LOOSE, len(self.lengths))
        batches = np.split(np.argsort(lengths, kind="stable"), cuts)
        return [batches[i] for i in random.permutation(len(batches))]
