"""Spoken digits: the recordings of the Free Spoken Digit Dataset that have been aligned."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rnnorm.experiments.data.held_out import fixed_tenth, two_held_out
from rnnorm.experiments.data.speech.filter_banks import FEATURES, filter_banks_of
from rnnorm.experiments.data.speech.kaldi.alignments import read_alignments
from rnnorm.experiments.data.speech.recordings import read_recordings
from rnnorm.experiments.data.speech.utterances import Features, Speech, Utterance, held, pair
from rnnorm.experiments.data.users_folder import users_folder

RATE = 8000
Split = Literal["speaker", "random"]


def load_fsdd(data_dir: str | Path | None, alignments: str, split: Split, speaker: str) -> Speech:
    """Filter banks of the recordings, and the states that Kaldi has aligned with them.

    Args:
        data_dir: holds ``recordings/`` or ``fsdd-recordings.tar.xz`` (also ``.gz``, or ``.tar``),
            itself or in a folder ``fsdd`` or ``free-spoken-digit-dataset``.
        alignments: folder of the alignments, relative to ``data_dir``; see
            ``read_alignments``. Their utterances are
            called ``{speaker}_{digit}_{index}``.
        split: ``"speaker"`` to train on one speaker, with a random tenth for validation, and test
            on the others; ``"random"`` for a random tenth of all for validation and another for
            test. The draw is always the same.
        speaker: the one to train on.

    Raises:
        ValueError: a file is broken, frames and alignments differ in number, there is no such
            speaker, or no utterance is left to train.
        FileNotFoundError: there are no recordings, or no alignments.
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
    # the recordings have the digit first
    names = {_file(name, folder / alignments): name for name in states.states}
    features: dict[str, tuple[int, Features]] = {}
    for file, samples in read_recordings(recordings, names, RATE):
        frames = filter_banks_of(f"{recordings}/{file}", samples, RATE)
        features[names[file]] = len(frames), held(frames)
    in_order = {name: features[name] for name in sorted(features)}
    utterances, notes = pair(in_order, states.states, str(recordings))
    train, val, test = _split(utterances, split, speaker, recordings)
    return Speech(train, val, test, FEATURES, states.num_states, notes)


def _file(utterance: str, source: Path) -> str:
    try:
        speaker, digit, index = utterance.rsplit("_", 2)
    except ValueError:
        raise ValueError(
            f"the utterances of {source} must be called {{speaker}}_{{digit}}_{{index}}, got "
            f"{utterance!r}"
        ) from None
    return f"{digit}_{speaker}_{index}.wav"


def find_recordings(folder: Path) -> Path:
    """The folder or archive of the recordings in a user's folder.

    Raises:
        FileNotFoundError: there is none.
    """
    archives = [f"fsdd-recordings.tar{ending}" for ending in ("", ".xz", ".gz")]
    # a copy that is no clone is called after its branch or version
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
    # in their own order, recordings of a digit stand together
    parts = [*fixed_tenth(own), other] if split == "speaker" else [*two_held_out(own)]
    if not parts[0]:
        held = "validates" if split == "speaker" else "validates and another tests"
        raise ValueError(
            f"{source} has too few aligned recordings to train: a tenth {held}, of {len(own)}"
        )
    return parts
