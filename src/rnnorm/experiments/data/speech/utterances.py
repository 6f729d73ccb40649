"""Utterances with states or symbols, whose features are read on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Features = Callable[[], NDArray[np.float32]]


def in_memory(features: NDArray[np.float32]) -> Features:
    """Return a reader of features that are held in memory."""
    return lambda: features


class Utterance(NamedTuple):
    """An utterance with the state of each frame.

    Attributes:
        name: id of the utterance.
        read: reads or computes the features ``(T, F)``.
        targets: state of each frame ``(T,)``.
    """

    name: str
    read: Features
    targets: NDArray[np.int32]


class Speech(NamedTuple):
    """Three disjoint parts of a data set with aligned states.

    Attributes:
        train: utterances for training.
        val: utterances for validation.
        test: utterances for test.
        num_features: values of a frame.
        num_targets: number of states.
        notes: remarks about what was left out.
    """

    train: Sequence[Utterance]
    val: Sequence[Utterance]
    test: Sequence[Utterance]
    num_features: int
    num_targets: int
    notes: Sequence[str]


def pair(
    features: Mapping[str, tuple[int, Features]],
    states: Mapping[str, NDArray[np.int32]],
    source: str,
) -> tuple[list[Utterance], list[str]]:
    """Pair features with alignments, in the order of the features.

    Args:
        features: number of frames and reader, by utterance.
        states: the state of each frame, by utterance.
        source: the source of both, for messages.

    Returns:
        The utterances that have both, and notes of how many lack one of the two.

    Raises:
        ValueError: if an alignment and its features differ in length, or no utterance has both.
    """
    found = [Utterance(n, read, states[n]) for n, (_, read) in features.items() if n in states]
    other = [u for u in found if len(u.targets) != features[u.name][0]]
    if other:
        first = other[0]
        raise ValueError(
            f"{source}: {len(other)} of {len(found)} utterances have an alignment of another "
            f"length than their features, such as {first.name!r} with "
            f"{features[first.name][0]} frames and {len(first.targets)} states"
        )
    if not found:
        raise ValueError(
            f"{source}: none of {len(features)} utterances with features has one of the "
            f"{len(states)} alignments"
        )
    notes = []
    if missing := [name for name in features if name not in states]:
        notes.append(f"{source}: {len(missing)} utterances without alignment, such as {missing[0]}")
    if missing := [name for name in states if name not in features]:
        notes.append(f"{source}: {len(missing)} alignments without features, such as {missing[0]}")
    return found, notes


class Spoken(NamedTuple):
    """An utterance with its transcript.

    Attributes:
        name: id of the utterance.
        read: reads or computes the features ``(T, F)``.
        frames: number of frames T.
        symbols: one or more words, characters or phones that were said.
    """

    name: str
    read: Features
    frames: int
    symbols: tuple[str, ...]


class SpokenParts(NamedTuple):
    """Three disjoint parts of a data set with transcripts.

    Attributes:
        train: utterances for training.
        val: utterances for validation.
        test: utterances for test.
        num_features: values of a frame.
        notes: remarks about what was left out.
    """

    train: Sequence[Spoken]
    val: Sequence[Spoken]
    test: Sequence[Spoken]
    num_features: int
    notes: Sequence[str]
