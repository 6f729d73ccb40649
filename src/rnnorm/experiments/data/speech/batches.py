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

from rnnorm.experiments.data.batches import SimilarLengths, frame_mask
from rnnorm.experiments.data.speech.utterances import Spoken, Utterance
from rnnorm.experiments.data.text.vocabulary import Vocabulary
from rnnorm.experiments.data.text.windows import PADDING


class FrameBatch(NamedTuple):
    """A right-padded minibatch of utterances.

    Attributes:
        x: features ``(T, B, F)``.
        y: state of each frame ``(T, B)``, ``PADDING`` in the padding.
        lengths: frames of each utterance ``(B,)``.
    """

    x: Tensor
    y: Tensor
    lengths: Tensor

    @property
    def inside(self) -> Tensor:
        """Return the mask ``(T, B)`` of the frames that are not padding."""
        return frame_mask(self.lengths, len(self.x))


class FrameBatches(SimilarLengths[FrameBatch]):
    """Minibatches of utterances of similar length, with the states of their frames.

    Args:
        utterances: the utterances; their features are read when a minibatch is made.
        batch_size: rows of a minibatch.
        seed: seed of the order, or None for the order of the lengths.
        prepare: transforms the features ``(T, F)`` of an utterance.
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
        """Return a minibatch of the drawn order.

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
        targets: numbers of its symbols from 1 on ``(S, B)``; the padding is 0, the blank.
        target_lengths: symbols of each utterance ``(B,)``, 0 for one that cannot be aligned.
        transcripts: the symbols themselves, as text.
    """

    x: Tensor
    lengths: Tensor
    targets: Tensor
    target_lengths: Tensor
    transcripts: list[tuple[str, ...]]


def least_steps(symbols: Sequence[str]) -> int:
    """Return the fewest steps that fit some symbols: equal neighbours need a blank between."""
    return len(symbols) + sum(a == b for a, b in pairwise(symbols))


class TranscriptBatches(SimilarLengths[TranscriptBatch]):
    """Minibatches of utterances of similar length, with their transcripts.

    Args:
        utterances: the utterances; their features are read when a minibatch is made.
        vocabulary: the symbols; an utterance with any other symbol cannot be aligned.
        batch_size: rows of a minibatch.
        seed: seed of the order, or None for the order of the lengths.
        stacked: frames that are stacked into one step.
        prepare: turns the features of an utterance into steps ``(ceil(frames / stacked), F)``.
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
        """Tell whether an utterance has enough steps, and only symbols of the vocabulary."""
        symbols = self.utterances[index].symbols
        known = all(self.vocabulary.number(symbol) is not None for symbol in symbols)
        return known and int(self.lengths[index]) >= least_steps(symbols)

    def batch(self, number: int, drawn: list[NDArray[np.intp]]) -> TranscriptBatch:
        """Return a minibatch of the drawn order.

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
