"""Minibatches of utterances of similar length, with a target for every frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rnnorm.experiments.data.inside import inside
from rnnorm.experiments.data.similar_lengths import SimilarLengths
from rnnorm.experiments.data.speech.utterances import Utterance
from rnnorm.experiments.data.text.windows import PADDING


class FrameBatch(NamedTuple):
    """A right-padded minibatch of utterances.

    Attributes:
        x: features ``(T, B, F)``.
        y: state of each frame ``(T, B)``, or ``PADDING``.
        lengths: frames of each utterance ``(B,)``.
    """

    x: Tensor
    y: Tensor
    lengths: Tensor

    @property
    def inside(self) -> Tensor:
        """Which frames are not padding ``(T, B)``."""
        return inside(self.lengths, len(self.x))


class FrameBatches(SimilarLengths[FrameBatch]):
    """Minibatches of utterances of similar length, with the states of their frames.

    Args:
        utterances: what to read; their features are read when their minibatch is made.
        batch_size: rows of a minibatch.
        seed: seed of the order, or None for the order of the lengths.
        prepare: what becomes of the features ``(T, F)`` of an utterance.
    """

    def __init__(
        self,
        utterances: Sequence[Utterance],
        batch_size: int,
        seed: int | None = None,
        prepare: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None,
    ) -> None:
        super().__init__([len(u.targets) for u in utterances], batch_size, seed)
        self.utterances = utterances
        self.prepare = prepare or (lambda features: features)

    def batch(self, number: int, drawn: list[NDArray[np.intp]]) -> FrameBatch:
        """A minibatch of this order.

        Raises:
            ValueError: the features of an utterance are broken.
        """
        rows = [self.utterances[i] for i in drawn[number]]
        features = [torch.from_numpy(self.prepare(row.read())) for row in rows]
        targets = [torch.from_numpy(row.targets).long() for row in rows]
        return FrameBatch(
            pad_sequence(features),
            pad_sequence(targets, padding_value=PADDING),
            torch.from_numpy(self.lengths[drawn[number]]),
        )
