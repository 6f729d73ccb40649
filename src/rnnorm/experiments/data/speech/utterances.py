"""Utterances: features that are read when they are wanted, with states or with symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Features = Callable[[], NDArray[np.float32]]


def held(features: NDArray[np.float32]) -> Features:
    """A reader of features that are held in memory."""
    return lambda: features


class Utterance(NamedTuple):
    """An utterance.

    Attributes:
        name: its id.
        read: reads or computes its features ``(T, F)``.
        targets: state of each frame ``(T,)``.
    """

    name: str
    read: Features
    targets: NDArray[np.int32]


class Speech(NamedTuple):
    """Disjoint parts of a data set.

    Attributes:
        train: to train on.
        val: to validate on.
        test: to test on.
        num_features: values of a frame.
        num_targets: how many states there are.
        notes: what was left out, in words.
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
    """Utterances that have both features and an alignment, in the order of the features.

    Args:
        features: number of frames and reader, by utterance.
        states: the state of each frame, by utterance.
        source: where they are from, for the message.

    Returns:
        The utterances, and a note of how many lack one of the two.

    Raises:
        ValueError: if an alignment has another length than its features, or none is left.
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
    """An utterance.

    Attributes:
        name: its id.
        read: reads or computes its features ``(T, F)``.
        frames: how many frames it has, T.
        symbols: what was said, words, characters or phones, one or more.
    """

    name: str
    read: Features
    frames: int
    symbols: tuple[str, ...]


class SpokenParts(NamedTuple):
    """Disjoint parts of a data set.

    Attributes:
        train: to train on.
        val: to validate on.
        test: to test on.
        num_features: values of a frame.
        notes: what was left out, in words.
    """

    train: Sequence[Spoken]
    val: Sequence[Spoken]
    test: Sequence[Spoken]
    num_features: int
    notes: Sequence[str]
