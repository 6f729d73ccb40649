"""Minibatches of utterances of similar length, with a target for every frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rnnorm.experiments.data.resumable import Resumable, minibatches
from rnnorm.experiments.data.speech.utterances import Utterance
from rnnorm.experiments.data.text.windows import PADDING

# by how much of itself an utterance may be taken for longer or shorter
_LOOSE = 0.1


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
        return torch.arange(len(self.x), device=self.x.device).unsqueeze(1) < self.lengths


class FrameBatches(Resumable[FrameBatch]):
    """Minibatches of utterances of similar length; every utterance is in one of them.

    With a seed, lengths are compared after each was changed by up to a tenth at random, and the
    minibatches come in random order.

    Args:
        utterances: what to read; their features are read when their minibatch is made.
        batch_size: rows of a minibatch. One row that is left over joins the minibatch before it:
            batch statistics want rows.
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
        super().__init__(seed)
        self.utterances, self.batch_size = utterances, batch_size
        self.prepare = prepare or (lambda features: features)
        self._lengths = np.array([len(u.targets) for u in utterances])

    def __len__(self) -> int:
        """Number of minibatches of an epoch."""
        return minibatches(len(self.utterances), self.batch_size)

    def draw(self) -> list[NDArray[np.intp]]:
        """Which utterances stand in each minibatch of this epoch."""
        cuts = np.arange(1, len(self)) * self.batch_size
        if self.seed is None:
            return np.split(np.argsort(self._lengths, kind="stable"), cuts)
        random = self.random()
        lengths = self._lengths * random.uniform(1 - _LOOSE, 1 + _LOOSE, len(self._lengths))
        batches = np.split(np.argsort(lengths, kind="stable"), cuts)
        return [batches[i] for i in random.permutation(len(batches))]

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
            torch.from_numpy(self._lengths[drawn[number]]),
        )
