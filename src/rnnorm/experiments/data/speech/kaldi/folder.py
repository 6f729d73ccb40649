"""A user's own Kaldi features and alignments, in three folders."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rnnorm.experiments.data.speech.kaldi.alignments import read_alignments
from rnnorm.experiments.data.speech.kaldi.matrix import index_archive, matrix_shape, read_matrix
from rnnorm.experiments.data.speech.kaldi.scp import Place, read_scp
from rnnorm.experiments.data.speech.utterances import Features, Speech, Utterance, pair
from rnnorm.experiments.data.users_folder import users_folder
from rnnorm.experiments.data.whole_file import is_there

_PARTS = ("train", "dev", "test")


def load_kaldi(data_dir: str | Path | None) -> Speech:
    """Utterances of the folders ``train``, ``dev`` and ``test``.

    Features stay in their archives; only headers are read here.

    Args:
        data_dir: holds the three folders, each with ``feats.scp`` (or ``feats.ark``,
            ``feats.ark.gz``) and alignments as
            :func:`rnnorm.experiments.data.speech.kaldi.alignments.read_alignments` finds them.

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
    if is_there(scp := folder / "feats.scp"):
        return read_scp(scp)
    for archive in (folder / "feats.ark", folder / "feats.ark.gz"):
        if is_there(archive):
            places: dict[str, Place] = {}
            for name, place in index_archive(archive):
                if name in places:
                    raise ValueError(f"{place} is a second matrix of utterance {name!r}")
                places[name] = place
            return places
    raise FileNotFoundError(f"{folder} has no features: neither feats.scp nor feats.ark[.gz]")
