"""Forced alignments of Kaldi: the tied state (pdf id) of every frame."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rnnorm.experiments.data.kaldi.archive import LONGEST_NAME, NAME_END
from rnnorm.experiments.data.kaldi.model import read_pdf_ids
from rnnorm.experiments.files import check_size, file_exists, unpack


class Alignments(NamedTuple):
    """States of the frames of each utterance ``(T,)``, and how many states there are.

    Attributes:
        states: the state of each frame, by utterance.
        num_states: number of states of the model; without a model, the largest state plus one.
    """

    states: dict[str, NDArray[np.int32]]
    num_states: int


def read_alignments(folder: str | Path) -> Alignments:
    """Read the alignments in a folder.

    With a ``final.mdl`` in the folder or the one above it, alignments are the transition ids of
    ``ali.*``; without one they are the pdf ids of ``pdf.*`` or ``ali_pdf.*``. They may be in one
    archive or several (``ali.1.gz``, ``ali.2.gz``), binary or text, plain or gzipped.

    Args:
        folder: folder of the archives.

    Raises:
        ValueError: if a file is broken, an utterance occurs twice, or a number is not a transition
            id of the model.
        FileNotFoundError: if there are no alignments, or transition ids without a model.
    """
    folder = Path(folder)
    ids = sorted(folder.glob("ali.*"))
    pdfs = sorted([*folder.glob("pdf.*"), *folder.glob("ali_pdf.*")])
    models = [f / "final.mdl" for f in (folder, folder.parent)]
    model = next((path for path in models if file_exists(path)), None)
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
    """Read the vectors of several archives and check that their numbers are within bounds."""
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


# layout of a binary number: a byte with its size, then the value
_NUMBER = np.dtype([("size", "i1"), ("value", "<i4")])
# most bytes of a line of text, since parsing it takes many times its size in memory
_LONGEST_LINE = 1 << 26


def read_int_vectors(path: str | Path) -> dict[str, NDArray[np.int32]]:
    """Read a whole archive of integer vectors, binary or text, plain or gzipped.

    Args:
        path: the archive, such as ``ali.1.gz``.

    Returns:
        A vector ``(N,)`` for each utterance.

    Raises:
        ValueError: if the archive is truncated, does not hold integer vectors, or has an utterance
            twice; the message names the file and the (unpacked) byte.
        FileNotFoundError: if there is no such file.
    """
    path = Path(path)
    # editors may add a byte order mark
    data = unpack(path).removeprefix(codecs.BOM_UTF8)
    vectors: dict[str, NDArray[np.int32]] = {}
    position = 0
    while position < len(data):
        end = NAME_END.search(data, position, position + LONGEST_NAME)
        if end is None and len(data) > position + LONGEST_NAME:
            raise ValueError(
                f"{path} is not an archive of integers: no utterance at byte {position}"
            )
        if end is None and not data[position:].strip():
            break
        if end is None:
            raise ValueError(f"{path} is truncated: it ends in the utterance at byte {position}")
        name = data[position : end.start()].strip().decode(errors="replace")
        if not name or "\n" in name:
            raise ValueError(
                f"{path} is not an archive of integers: no utterance at byte {position}"
            )
        if name in vectors:
            raise ValueError(f"{path} has utterance {name!r} a second time, at byte {position}")
        read = _binary if data[end.end() : end.end() + 2] == b"\0B" else _text
        vectors[name], position = read(data, end.end(), path)
    return vectors


def _binary(data: bytes, start: int, path: Path) -> tuple[NDArray[np.int32], int]:
    """Parse a binary vector; return it and the position of the byte behind it."""
    count = np.frombuffer(data[start + 2 : start + 7].ljust(5, b"\0"), _NUMBER)[0]
    end = start + 7 + 5 * int(count["value"])
    if len(data) < end or len(data) < start + 7:
        raise ValueError(
            f"{path} is truncated: it ends at byte {len(data)}, in the vector at byte {start}"
        )
    if count["size"] == 4 and end >= start + 7:
        numbers = np.frombuffer(data[start + 7 : end], _NUMBER)
        if (numbers["size"] == 4).all():
            return numbers["value"].astype(np.int32), end
    raise ValueError(f"{path} has no vector of 32-bit integers at byte {start}")


def _text(data: bytes, start: int, path: Path) -> tuple[NDArray[np.int32], int]:
    """Parse a vector on one line of text; return it and the position of the byte behind it."""
    end = data.find(b"\n", start)
    if end < 0:
        raise ValueError(
            f"{path} is truncated: its last line, at byte {start}, has no end: add a "
            "line feed if nothing is missing"
        )
    check_size(end - start, f"the line at byte {start} of {path}", _LONGEST_LINE)
    try:
        return np.array(data[start:end].split(), dtype=np.int32), end + 1
    except (ValueError, OverflowError):
        raise ValueError(f"{path} has no integers on the line at byte {start}") from None
