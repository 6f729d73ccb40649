"""A user's own Kaldi features with alignments or transcripts, in three folders."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

from rnnorm.experiments.data.batches import fixed_tenth
from rnnorm.experiments.data.kaldi.alignments import read_alignments
from rnnorm.experiments.data.kaldi.archive import (
    MatrixPosition,
    index_archive,
    matrix_shape,
    read_matrix,
    read_scp,
    split_fields,
)
from rnnorm.experiments.data.speech.utterances import (
    Features,
    Speech,
    Spoken,
    SpokenParts,
    Utterance,
    pair,
)
from rnnorm.experiments.data.text_file import placed_lines
from rnnorm.experiments.files import BrokenFileError, file_exists, users_folder

_PARTS = ("train", "dev", "test")


def load_kaldi(data_dir: str | Path | None) -> Speech:
    """Load the aligned utterances of the folders ``train``, ``dev`` and ``test``.

    Only the headers of features are read; the features are read when a minibatch is made.

    Args:
        data_dir: folder of the three folders, each with ``feats.scp`` (or ``feats.ark``,
            ``feats.ark.gz``) and alignments as
            :func:`rnnorm.experiments.data.kaldi.alignments.read_alignments` finds them.

    Raises:
        ValueError: if a file is broken, features and alignments differ in length, features differ
            in width, or no utterance has both.
        FileNotFoundError: if a folder or a file is missing.
    """
    folder = users_folder(data_dir, f"the folders {', '.join(_PARTS)}")
    if missing := [part for part in _PARTS if not (folder / part).is_dir()]:
        raise FileNotFoundError(
            f"{folder} lacks the folder {', '.join(missing)}: features and alignments are looked "
            f"for in {', '.join(_PARTS)}"
        )
    parts: list[list[Utterance]] = []
    notes: list[str] = []
    widths: dict[int, str] = {}
    count = 0
    for part in _PARTS:
        alignments = read_alignments(folder / part)
        features = list_features(folder / part, widths)
        utterances, part_notes = pair(features, alignments.states, str(folder / part))
        parts.append(utterances)
        notes += part_notes
        count = max(count, alignments.num_states)
    train, dev, test = parts
    return Speech(train, dev, test, one_width(widths), count, notes)


def list_features(folder: Path, widths: dict[int, str]) -> dict[str, tuple[int, Features]]:
    """Find the number of frames and a reader of the features of each utterance of a folder.

    Args:
        folder: folder with ``feats.scp`` (or ``feats.ark``, ``feats.ark.gz``).
        widths: receives each number of columns, with the first matrix that has it.

    Raises:
        ValueError: if a file is broken.
        FileNotFoundError: if there are no features.
    """
    features: dict[str, tuple[int, Features]] = {}
    for name, position in _positions(folder).items():
        rows, columns = matrix_shape(position)
        widths.setdefault(columns, f"{name!r} in {position}")
        features[name] = rows, partial(read_matrix, position)
    return features


def one_width(widths: dict[int, str]) -> int:
    """Return the number of columns that all features share.

    Raises:
        ValueError: if features differ in their number of columns.
    """
    if len(widths) > 1:
        each = ", ".join(f"{width} for {where}" for width, where in widths.items())
        raise ValueError(f"all features must have as many columns, got {each}")
    return next(iter(widths))


def _positions(folder: Path) -> dict[str, MatrixPosition]:
    if file_exists(scp := folder / "feats.scp"):
        return read_scp(scp)
    for archive in (folder / "feats.ark", folder / "feats.ark.gz"):
        if file_exists(archive):
            positions: dict[str, MatrixPosition] = {}
            for name, position in index_archive(archive):
                if name in positions:
                    raise ValueError(f"{position} is a second matrix of utterance {name!r}")
                positions[name] = position
            return positions
    raise FileNotFoundError(f"{folder} has no features: neither feats.scp nor feats.ark[.gz]")


Units = Literal["words", "characters"]


def read_transcripts(path: str | Path) -> dict[str, str]:
    """Read a file ``text``: an utterance and its words on each line.

    Args:
        path: the file, plain or compressed.

    Returns:
        The words with single spaces between, by utterance; an empty text for a line without words.

    Raises:
        BrokenFileError: if an utterance occurs twice.
        FileNotFoundError: if there is no such file.
    """
    transcripts: dict[str, str] = {}
    for where, line in placed_lines(path):
        name, *words = split_fields(line)
        if name in transcripts:
            raise BrokenFileError(f"{where} names utterance {name!r} a second time")
        transcripts[name] = " ".join(words)
    return transcripts


def load_kaldi_text(data_dir: str | Path | None, units: Units) -> SpokenParts:
    """Load the transcribed utterances of the folders ``train``, ``dev`` and ``test``.

    Without ``dev`` a fixed random tenth of the training utterances is for validation.

    Args:
        data_dir: folder of these folders, each with ``feats.scp`` (or ``feats.ark``,
            ``feats.ark.gz``) and ``text`` (:func:`read_transcripts`).
        units: whether a symbol is a word or a character, spaces between words included.

    Raises:
        ValueError: if a file is broken, features differ in width, or no utterance of a part has
            both features and words.
        FileNotFoundError: if a folder or a file is missing.
    """
    folder = users_folder(data_dir, "the folders train, dev and test")
    if missing := [part for part in ("train", "test") if not (folder / part).is_dir()]:
        raise FileNotFoundError(f"{folder} lacks the folder {', '.join(missing)}")
    present = [part for part in _PARTS if (folder / part).is_dir()]
    widths: dict[int, str] = {}
    notes: list[str] = []
    parts = {part: _part(folder / part, units, widths, notes) for part in present}
    width = one_width(widths)
    if "dev" not in parts:
        parts["train"], parts["dev"] = fixed_tenth(parts["train"])
        notes.append(
            f"{folder} has no dev: {len(parts['dev'])} of the training utterances validate"
        )
    if not parts["train"]:
        raise ValueError(f"{folder / 'train'} must have an utterance besides those to validate")
    return SpokenParts(parts["train"], parts["dev"], parts["test"], width, notes)


def _part(folder: Path, units: Units, widths: dict[int, str], notes: list[str]) -> list[Spoken]:
    transcripts = read_transcripts(folder / "text")
    features = list_features(folder, widths)
    found = [
        Spoken(name, read, rows, tuple(text.split(" ") if units == "words" else text))
        for name, (rows, read) in features.items()
        if (text := transcripts.get(name))
    ]
    if not found:
        raise ValueError(f"{folder}: no utterance has both features and words")
    if silent := [name for name in features if not transcripts.get(name)]:
        notes.append(f"{folder}: {len(silent)} utterances without words, such as {silent[0]}")
    if unheard := transcripts.keys() - features.keys():
        notes.append(f"{folder}: {len(unheard)} of text without features, such as {min(unheard)}")
    return found
