"""A user's own Kaldi features and what was said, in folders ``train``, ``dev`` and ``test``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rnnorm.experiments.data.held_out import fixed_tenth
from rnnorm.experiments.data.speech.kaldi.folder import list_features, one_width
from rnnorm.experiments.data.speech.kaldi.scp import split_fields
from rnnorm.experiments.data.speech.spoken import Spoken, SpokenParts
from rnnorm.experiments.data.text_file import placed_lines
from rnnorm.experiments.data.users_folder import users_folder
from rnnorm.experiments.data.whole_file import BrokenFileError

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
