"""The Free Spoken Digit Dataset: aligned recordings, and strings of digits made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rnnorm.experiments.data.batches import fixed_tenth, two_held_out
from rnnorm.experiments.data.kaldi.alignments import read_alignments
from rnnorm.experiments.data.speech.filter_banks import FEATURES, filter_banks, filter_banks_of
from rnnorm.experiments.data.speech.recordings import read_recordings
from rnnorm.experiments.data.speech.utterances import (
    Features,
    Speech,
    Spoken,
    SpokenParts,
    Utterance,
    in_memory,
    pair,
)
from rnnorm.experiments.files import users_folder

RATE = 8000
Split = Literal["speaker", "random"]


def load_fsdd(data_dir: str | Path | None, alignments: str, split: Split, speaker: str) -> Speech:
    """Load filter banks of the recordings, with the states that Kaldi aligned with them.

    Args:
        data_dir: folder with ``recordings/`` or ``fsdd-recordings.tar.xz`` (also ``.gz``, or
            ``.tar``), itself or in a folder ``fsdd`` or ``free-spoken-digit-dataset``.
        alignments: folder of the alignments, relative to ``data_dir``; see ``read_alignments``.
            Their utterances are called ``{speaker}_{digit}_{index}``.
        split: ``"speaker"`` to train on one speaker, with a random tenth for validation, and test
            on the others; ``"random"`` for a random tenth of all for validation and another for
            test. The random choice is fixed.
        speaker: the speaker to train on.

    Raises:
        ValueError: if a file is broken, frames and alignments differ in number, there is no such
            speaker, or no utterance is left to train.
        FileNotFoundError: if there are no recordings, or no alignments.
    """
    what = "the recordings of the Free Spoken Digit Dataset and their alignments"
    folder = users_folder(data_dir, what)
    recordings = find_recordings(folder)
    if not (folder / alignments).is_dir():
        raise FileNotFoundError(
            f"there is no folder {folder / alignments}: name that of the alignments, relative to "
            "--data-dir, with --data.init_args.alignments"
        )
    states = read_alignments(folder / alignments)
    # names of recordings begin with the digit, names of utterances with the speaker
    names = {_file(name, folder / alignments): name for name in states.states}
    features: dict[str, tuple[int, Features]] = {}
    for file, samples in read_recordings(recordings, names, RATE):
        frames = filter_banks_of(f"{recordings}/{file}", samples, RATE)
        features[names[file]] = len(frames), in_memory(frames)
    in_order = {name: features[name] for name in sorted(features)}
    utterances, notes = pair(in_order, states.states, str(recordings))
    train, val, test = _split(utterances, split, speaker, recordings)
    return Speech(train, val, test, FEATURES, states.num_states, notes)


def _file(utterance: str, source: Path) -> str:
    """Return the name of the recording of an utterance ``{speaker}_{digit}_{index}``."""
    try:
        speaker, digit, index = utterance.rsplit("_", 2)
    except ValueError:
        raise ValueError(
            f"the utterances of {source} must be called {{speaker}}_{{digit}}_{{index}}, got "
            f"{utterance!r}"
        ) from None
    return _recordings_file(digit, speaker, index)


def _recordings_file(digit: int | str, speaker: str, index: int | str) -> str:
    return f"{digit}_{speaker}_{index}.wav"


def find_recordings(folder: Path) -> Path:
    """Find the folder or the archive of the recordings in a user's folder.

    Raises:
        FileNotFoundError: if there are no recordings.
    """
    archives = [f"fsdd-recordings.tar{ending}" for ending in ("", ".xz", ".gz")]
    # a downloaded copy has the branch or the version in its name
    for parent in (folder, folder / "fsdd", *sorted(folder.glob("free-spoken-digit-dataset*"))):
        for path in (parent / name for name in ("recordings", *archives)):
            if path.exists():
                return path
    raise FileNotFoundError(
        f"{folder} holds no recordings/ and no {archives[1]}, and neither does its folder fsdd: "
        "put the recordings of the Free Spoken Digit Dataset there, or name another folder with "
        "--data-dir"
    )


def _split(
    utterances: list[Utterance], split: Split, speaker: str, source: Path
) -> list[list[Utterance]]:
    own, other = utterances, []
    if split == "speaker":
        speaker_of = {u.name: u.name.rsplit("_", 2)[0] for u in utterances}
        speakers = sorted(set(speaker_of.values()))
        if speaker not in speakers or len(speakers) < 2:
            raise ValueError(
                f"speaker must be one of several in {source}, {', '.join(speakers)}, "
                f"got {speaker!r}"
            )
        own = [u for u in utterances if speaker_of[u.name] == speaker]
        other = [u for u in utterances if speaker_of[u.name] != speaker]
    # the split shuffles, since recordings of a digit are neighbours
    parts = [*fixed_tenth(own), other] if split == "speaker" else [*two_held_out(own)]
    if not parts[0]:
        held = "validates" if split == "speaker" else "validates and another tests"
        raise ValueError(
            f"{source} has too few aligned recordings to train: a tenth {held}, of {len(own)}"
        )
    return parts


SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
FEWEST, MOST = 3, 7
# indices of each part's recordings of a digit; the published split has 0 to 4 for test
_INDICES = {"train": range(10, 50), "val": range(5, 10), "test": range(5)}
# seconds of silence around digits, and the standard deviation of its noise
_GAP = (0.05, 0.3)
_NOISE = 1e-3


def load_digit_strings(
    data_dir: str | Path | None,
    strings: int,
    speakers: Sequence[str] = SPEAKERS,
    test_speakers: Sequence[str] = (),
) -> SpokenParts:
    """Make fixed strings of 3 to 7 random digits of one speaker, with silence between them.

    No recording is in two parts: training strings use the recordings 10 to 49 of each digit,
    validation strings 5 to 9, and test strings 0 to 4.

    Args:
        data_dir: folder with ``recordings/`` or ``fsdd-recordings.tar`` (also ``.gz`` or ``.xz``),
            itself or in a folder ``fsdd`` or ``free-spoken-digit-dataset``.
        strings: number of training strings; validation and test have a tenth as many, at least two.
        speakers: speakers of all strings, or of training and validation with ``test_speakers``.
        test_speakers: other speakers for the test strings, or none.

    Raises:
        ValueError: if a recording is broken, or ``speakers`` and ``test_speakers`` overlap.
        FileNotFoundError: if there are no recordings, or one is missing.
    """
    folder = users_folder(data_dir, "the recordings of the Free Spoken Digit Dataset")
    if both := set(speakers) & set(test_speakers):
        raise ValueError(f"test_speakers must be none of speakers, got {min(both)} in both")
    names = [
        _recordings_file(digit, speaker, index)
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


def _strings(
    part: str,
    count: int,
    recordings: Mapping[str, NDArray[np.float32]],
    speakers: Sequence[str],
) -> list[Spoken]:
    """Make ``count`` strings of a part."""
    indices = _INDICES[part]
    # one generator for each part, so that no part depends on the size of another
    random = np.random.RandomState(list(_INDICES).index(part))
    made = []
    for number in range(count):
        speaker = speakers[random.randint(len(speakers))]
        digits = random.randint(len(WORDS), size=random.randint(FEWEST, MOST + 1))
        sounds = [_silence(random)]
        for digit in digits:
            name = _recordings_file(digit, speaker, indices[random.randint(len(indices))])
            sounds += [recordings[name], _silence(random)]
        frames = filter_banks(np.concatenate(sounds), RATE)
        words = tuple(WORDS[digit] for digit in digits)
        made.append(Spoken(f"{part}-{number}-{speaker}", in_memory(frames), len(frames), words))
    return made


def _silence(random: np.random.RandomState) -> NDArray[np.float32]:
    # without noise the logarithm of silence would dominate the variance of a string
    return _NOISE * random.randn(int(random.uniform(*_GAP) * RATE)).astype(np.float32)
