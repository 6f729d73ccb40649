"""Strings of spoken digits, made of recordings of the Free Spoken Digit Dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rnnorm.experiments.data.speech.filter_banks import FEATURES, filter_banks
from rnnorm.experiments.data.speech.fsdd import RATE, find_recordings
from rnnorm.experiments.data.speech.recordings import read_recordings
from rnnorm.experiments.data.speech.spoken import Spoken, SpokenParts
from rnnorm.experiments.data.speech.utterances import held
from rnnorm.experiments.data.users_folder import users_folder

SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
FEWEST, MOST = 3, 7
# which recordings of a digit a part has, as the set is published: 0 to 4 are for test
_INDICES = {"train": range(10, 50), "val": range(5, 10), "test": range(5)}
# seconds of silence before, between and behind digits, and the spread of its noise
_GAP = (0.05, 0.3)
_NOISE = 1e-3


def load_digit_strings(
    data_dir: str | Path | None,
    strings: int,
    speakers: Sequence[str] = SPEAKERS,
    test_speakers: Sequence[str] = (),
) -> SpokenParts:
    """Strings of 3 to 7 random digits of one speaker each, with silence between, always the same.

    A recording is in one part alone: its strings are made of the recordings 10 to 49 of each digit
    in training, 5 to 9 in validation, and 0 to 4 in test.

    Args:
        data_dir: holds ``recordings/`` or ``fsdd-recordings.tar`` (also ``.gz`` or ``.xz``),
            itself or in a folder ``fsdd`` or ``free-spoken-digit-dataset``.
        strings: how many there are for training, and a tenth as many, at least two, for validation
            and for test.
        speakers: whose recordings.
        test_speakers: of the test strings, if they are to be of others than those that training
            and validation have.

    Raises:
        ValueError: a recording is broken, or a speaker of the test is one of the others, too.
        FileNotFoundError: there are no recordings, or one is missing.
    """
    folder = users_folder(data_dir, "the recordings of the Free Spoken Digit Dataset")
    if both := set(speakers) & set(test_speakers):
        raise ValueError(f"test_speakers must be none of speakers, got {min(both)} in both")
    names = [
        _file(digit, speaker, index)
        for speaker in (*speakers, *test_speakers)
        for digit in range(len(WORDS))
        for indices in _INDICES.values()
        for index in indices
    ]
    recordings = dict(read_recordings(find_recordings(folder), names, RATE))
    few = max(2, strings // 10)
    train, val, test = (
        _strings(part, count, recordings, who)
        for part, count, who in (
            ("train", strings, speakers),
            ("val", few, speakers),
            ("test", few, test_speakers or speakers),
        )
    )
    return SpokenParts(train, val, test, FEATURES, [])


def _file(digit: int, speaker: str, index: int) -> str:
    return f"{digit}_{speaker}_{index}.wav"


def _strings(
    part: str,
    count: int,
    recordings: Mapping[str, NDArray[np.float32]],
    speakers: Sequence[str],
) -> list[Spoken]:
    indices = _INDICES[part]
    # of its own for each part, so that none depends on the size of another
    random = np.random.RandomState(list(_INDICES).index(part))
    made = []
    for number in range(count):
        speaker = speakers[random.randint(len(speakers))]
        digits = random.randint(len(WORDS), size=random.randint(FEWEST, MOST + 1))
        sounds = [_silence(random)]
        for digit in digits:
            name = _file(digit, speaker, indices[random.randint(len(indices))])
            sounds += [recordings[name], _silence(random)]
        frames = filter_banks(np.concatenate(sounds), RATE)
        said = tuple(WORDS[digit] for digit in digits)
        made.append(Spoken(f"{part}-{number}-{speaker}", held(frames), len(frames), said))
    return made


def _silence(random: np.random.RandomState) -> NDArray[np.float32]:
    # without noise the logarithm of nothing would be most of what varies in a string
    return _NOISE * random.randn(int(random.uniform(*_GAP) * RATE)).astype(np.float32)
