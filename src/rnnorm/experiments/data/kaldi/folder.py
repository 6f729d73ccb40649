"""A user's own Kaldi features, with alignments or with what was said, in three folders."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

from rnnorm.experiments.data.batches import fixed_tenth
from rnnorm.experiments.data.kaldi.alignments import read_alignments
from rnnorm.experiments.data.kaldi.archive import (
    Place,
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
    """Utterances of the folders ``train``, ``dev`` and ``test``.

    Features stay in their archives; only headers are read here.

    Args:
        data_dir: holds the three folders, each with ``feats.scp`` (or ``feats.ark``,
            ``feats.ark.gz``) and alignments as
            :func:`rnnorm.experiments.data.kaldi.alignments.read_alignments` finds them.

    Raises:
        ValueError: a file is broken, features and alignments differ in length, features in width,
            or no utterance has both.
        FileNotFoundError: a folder or a file is missing.
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
        utterances, said = pair(features, alignments.states, str(folder / part))
        parts.append(utterances)
        notes += said
        count = max(count, alignments.num_states)
    train, dev, test = parts
    return Speech(train, dev, test, one_width(widths), count, notes)


def list_features(folder: Path, widths: dict[int, str]) -> dict[str, tuple[int, Features]]:
    """Frames and features of each utterance of a folder; only headers are read here.

    Args:
        folder: holds ``feats.scp`` (or ``feats.ark``, ``feats.ark.gz``).
        widths: gets the numbers of columns, each with the first place that has it.

    Raises:
        ValueError: a file is broken.
        FileNotFoundError: there are no features.
    """
    features: dict[str, tuple[int, Features]] = {}
    for name, place in _places(folder).items():
        rows, columns = matrix_shape(place)
        widths.setdefault(columns, f"{name!r} in {place}")
        features[name] = rows, partial(read_matrix, place)
    return features


def one_width(widths: dict[int, str]) -> int:
    """The columns that all features have.

    Raises:
        ValueError: some have others.
    """
    if len(widths) > 1:
        each = ", ".join(f"{width} for {where}" for width, where in widths.items())
        raise ValueError(f"all features must have as many columns, got {each}")
    return next(iter(widths))


def _places(folder: Path) -> dict[str, Place]:
    if file_exists(scp := folder / "feats.scp"):
        return read_scp(scp)
    for archive in (folder / "feats.ark", folder / "feats.ark.gz"):
        if file_exists(archive):
            places: dict[str, Place] = {}
            for name, place in index_archive(archive):
                if name in places:
                    raise ValueError(f"{place} is a second matrix of utterance {name!r}")
                places[name] = place
            return places
    raise FileNotFoundError(f"{folder} has no features: neither feats.scp nor feats.ark[.gz]")


Units = Literal["words", "characters"]


def read_transcripts(path: str | Path) -> dict[str, str]:
    """Read a file ``text``: an utterance and what was said on each line.

    Args:
        path: the file, plain or compressed.

    Returns:
        What was said, words with a space between, by utterance; of a line without words nothing.

    Raises:
        BrokenFileError: an utterance stands twice.
        FileNotFoundError: there is no such file.
    """
    said: dict[str, str] = {}
    for where, line in placed_lines(path):
        name, *words = split_fields(line)
        if name in said:
            raise BrokenFileError(f"{where} names utterance {name!r} a second time")
        said[name] = " ".join(words)
    return said


def load_kaldi_text(data_dir: str | Path | None, units: Units) -> SpokenParts:
    """Utterances with features and words, of the folders ``train``, ``dev`` and ``test``.

    Without ``dev`` a fixed random tenth of the training utterances validates.

    Args:
        data_dir: holds the folders, each with ``feats.scp`` (or ``feats.ark``, ``feats.ark.gz``)
            and ``text`` (:func:`read_transcripts`).
        units: a symbol is a word or a character, the space between words among them.

    Raises:
        ValueError: a file is broken, features differ in width, or no utterance of a part has both.
        FileNotFoundError: a folder or a file is missing.
    """
    folder = users_folder(data_dir, "the folders train, dev and test")
    if missing := [part for part in ("train", "test") if not (folder / part).is_dir()]:
        raise FileNotFoundError(f"{folder} lacks the folder {', '.join(missing)}")
    there = [part for part in ("train", "dev", "test") if (folder / part).is_dir()]
    widths: dict[int, str] = {}
    notes: list[str] = []
    parts = {part: _part(folder / part, units, widths, notes) for part in there}
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
    said, features = read_transcripts(folder / "text"), list_features(folder, widths)
    found = [
        Spoken(name, read, rows, tuple(said[name].split(" ") if units == "words" else said[name]))
        for name, (rows, read) in features.items()
        if said.get(name)
    ]
    if not found:
        raise ValueError(f"{folder}: no utterance has both features and words")
    if silent := [name for name in features if not said.get(name)]:
        notes.append(f"{folder}: {len(silent)} utterances without words, such as {silent[0]}")
    if unheard := said.keys() - features.keys():
        notes.append(f"{folder}: {len(unheard)} of text without features, such as {min(unheard)}")
    return found
