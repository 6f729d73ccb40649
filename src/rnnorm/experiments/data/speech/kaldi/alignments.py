"""Forced alignments of Kaldi: the tied state (pdf id) of every frame."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rnnorm.experiments.data.speech.kaldi.model import read_pdf_ids
from rnnorm.experiments.data.speech.kaldi.vectors import read_int_vectors
from rnnorm.experiments.data.whole_file import is_there


class Alignments(NamedTuple):
    """States of the frames of each utterance ``(T,)``, and how many states there are.

    Attributes:
        states: by utterance.
        num_states: how many the model has; without a model the largest one and one.
    """

    states: dict[str, NDArray[np.int32]]
    num_states: int


def read_alignments(folder: str | Path) -> Alignments:
    """Read the alignments in a folder.

    Beside a ``final.mdl``, in the folder or the one above it, they are the transition ids of
    ``ali.*``; without one they are the pdf ids of ``pdf.*`` or ``ali_pdf.*``. Each may be one
    archive or several (``ali.1.gz``, ``ali.2.gz``), binary or text, plain or gzipped.

    Args:
        folder: holds the archives.

    Raises:
        ValueError: a file is broken, an utterance stands twice, or a number is no transition id of
            the model.
        FileNotFoundError: there are no alignments, or transition ids without a model.
    """
    folder = Path(folder)
    ids = sorted(folder.glob("ali.*"))
    pdfs = sorted([*folder.glob("pdf.*"), *folder.glob("ali_pdf.*")])
    models = [f / "final.mdl" for f in (folder, folder.parent)]
    model = next((path for path in models if is_there(path)), None)
    if ids and model is not None:
        pdf_of = read_pdf_ids(model)
        states = _read(ids, len(pdf_of) - 1, f"transition ids of {model}", least=1)
        return Alignments(
            {name: pdf_of[vector] for name, vector in states.items()}, int(pdf_of.max()) + 1
        )
    if pdfs:
        states = _read(pdfs, np.iinfo(np.int32).max, "states", least=0)
        return Alignments(states, 1 + max((int(v.max()) for v in states.values()), default=-1))
    if ids:
        raise FileNotFoundError(
            f"{folder} has transition ids ({ids[0].name}) and no final.mdl: put it there, or write "
            "the states to pdf.ark with ali-to-pdf"
        )
    raise FileNotFoundError(f"{folder} has no alignments: neither ali.* nor pdf.* nor ali_pdf.*")


def _read(paths: list[Path], most: int, what: str, least: int) -> dict[str, NDArray[np.int32]]:
    """The vectors of several archives, of numbers between two bounds."""
    found: dict[str, NDArray[np.int32]] = {}
    for path in paths:
        for name, vector in read_int_vectors(path).items():
            if name in found:
                raise ValueError(f"{path} has utterance {name!r}, which another archive has too")
            if not len(vector) or vector.min() < least or vector.max() > most:
                got = f"{vector.min()} to {vector.max()}" if len(vector) else "none"
                raise ValueError(
                    f"{path}, utterance {name!r}: the {what} are {least} to {most}, got {got}"
                )
            found[name] = vector
    return found
