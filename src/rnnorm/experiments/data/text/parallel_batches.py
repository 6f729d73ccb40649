"""Minibatches of sentences and their translations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rnnorm.experiments.data.resumable import WholeMinibatches


class ParallelBatch(NamedTuple):
    """Right-padded sentences and their translations.

    Attributes:
        source: numbers of words ``(S, B)``.
        source_lengths: words of each sentence ``(B,)``.
        target: numbers of words ``(T, B)``, the end of each translation included.
        target_lengths: how many each has ``(B,)``.
    """

    source: Tensor
    source_lengths: Tensor
    target: Tensor
    target_lengths: Tensor

    def to(self, device: torch.device | str) -> ParallelBatch:
        """The same on another device."""
        return ParallelBatch(*(part.to(device) for part in self))


class ParallelBatches(WholeMinibatches[ParallelBatch]):
    """Minibatches of random pairs, or, without a seed, in the order of the data, with all of them.

    Args:
        pairs: numbers of a sentence's words and of its translation's, ``(N,)`` each; the
            translation ends with the end symbol.
        batch_size: rows of a minibatch.
        seed: seed of the order, or None for the order of the data.
    """

    def __init__(
        self, pairs: Sequence[tuple[Tensor, Tensor]], batch_size: int, seed: int | None = None
    ) -> None:
        super().__init__(len(pairs), batch_size, seed)
        self.pairs = pairs

    def batch(self, number: int, drawn: list[NDArray[np.int64]]) -> ParallelBatch:
        """A minibatch of this order."""
        sources, targets = zip(*(self.pairs[i] for i in drawn[number].tolist()), strict=True)
        return ParallelBatch(
            # padding is never read, but has to be the number of a word
            pad_sequence(list(sources)),
            torch.tensor([len(source) for source in sources]),
            pad_sequence(list(targets)),
            torch.tensor([len(target) for target in targets]),
        )
