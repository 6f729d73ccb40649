"""Utterances with what was said in them, as symbols without times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rnnorm.experiments.data.speech.utterances import Features


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
