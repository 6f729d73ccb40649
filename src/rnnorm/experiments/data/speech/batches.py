"""Minibatches of utterances of similar length, with targets by frame or with symbols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rnnorm.experiments.data.batches import SimilarLengths, padding_mask
from rnnorm.experiments.data.speech.utterances import Spoken, Utterance
from rnnorm.experiments.data.text.vocabulary import Vocabulary
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
        return padding_mask(self.lengths, len(self.x))


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
            ValueError: if the features of an utterance are broken.
        """
        rows = [self.utterances[i] for i in drawn[number]]
        features = [torch.from_numpy(self.prepare(row.read())) for row in rows]
        targets = [torch.from_numpy(row.targets).long() for row in rows]
        return FrameBatch(
            pad_sequence(features),
            pad_sequence(targets, padding_value=PADDING),
            torch.from_numpy(self.lengths[drawn[number]]),
        )


class TranscriptBatch(NamedTuple):
    """A right-padded minibatch of utterances.

    Attributes:
        x: features ``(T, B, F)``.
        lengths: steps of each utterance ``(B,)``.
        targets: numbers of its symbols from 1 on ``(S, B)``, 0, the blank, in the
            padding.
        target_lengths: how many they are ``(B,)``, 0 where it cannot be aligned.
        said: the symbols themselves.
    """

    x: Tensor
    lengths: Tensor
    targets: Tensor
    target_lengths: Tensor
    said: list[tuple[str, ...]]


def least_steps(symbols: Sequence[str]) -> int:
    """The fewest steps that can be aligned with some symbols: equal neighbours need a blank."""
    return len(symbols) + sum(a == b for a, b in pairwise(symbols))


class TranscriptBatches(SimilarLengths[TranscriptBatch]):
    """Minibatches of utterances of similar length, with what was said in each.

    Args:
        utterances: what to read; their features are read when their minibatch is made.
        vocabulary: the symbols; an utterance with another cannot be aligned.
        batch_size: rows of a minibatch.
        seed: seed of the order, or None for the order of the lengths.
        stacked: frames that are one step.
        prepare: makes the steps ``(ceil(frames / stacked), F)`` of an utterance of its features.
    """

    def __init__(
        self,
        utterances: Sequence[Spoken],
        vocabulary: Vocabulary,
        batch_size: int,
        seed: int | None = None,
        stacked: int = 1,
        prepare: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None,
    ) -> None:
        super().__init__([-(-u.frames // stacked) for u in utterances], batch_size, seed)
        self.utterances, self.vocabulary = utterances, vocabulary
        self.prepare = prepare or (lambda features: features)

    def alignable(self, index: int) -> bool:
        """Whether an utterance has steps enough, and no symbol that the vocabulary lacks."""
        symbols = self.utterances[index].symbols
        known = all(self.vocabulary.number(symbol) is not None for symbol in symbols)
        return known and int(self.lengths[index]) >= least_steps(symbols)

    def batch(self, number: int, drawn: list[NDArray[np.intp]]) -> TranscriptBatch:
        """A minibatch of this order.

        Raises:
            ValueError: if the features of an utterance are broken.
        """
        rows = drawn[number].tolist()
        chosen = [self.utterances[i] for i in rows]
        targets = [
            self.vocabulary.numbers(u.symbols, 1) if self.alignable(i) else torch.tensor([]).long()
            for i, u in zip(rows, chosen, strict=True)
        ]
        return TranscriptBatch(
            pad_sequence([torch.from_numpy(self.prepare(u.read())) for u in chosen]),
            torch.from_numpy(self.lengths[rows]),
            pad_sequence(targets, padding_value=0),
            torch.tensor([len(target) for target in targets]),
            [u.symbols for u in chosen],
        )
