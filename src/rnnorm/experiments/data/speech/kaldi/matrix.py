"""Matrices of Kaldi archives, of floats, compressed or text, checked before they are decoded."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from rnnorm.experiments.data.speech.kaldi.scp import Place
from rnnorm.experiments.data.text_file import unpack

# bytes of a value, and of what stands before the values: once, and for each column
_LAYOUTS = {
    b"FM": (4, 0, 0),
    b"DM": (8, 0, 0),
    b"CM": (1, 16, 8),
    b"CM2": (2, 16, 0),
    b"CM3": (1, 16, 0),
}


def matrix_shape(place: Place) -> tuple[int, int]:
    """Rows and columns of a matrix, from its header alone unless it is text.

    Args:
        place: where it begins.

    Raises:
        ValueError: there is no whole matrix; the message names the file and the byte.
    """
    with _opened(place) as file:
        if file.read(2) == b"\0B":
            return _header(file, place)[:2]
        rows, columns = _read_text(file, place).shape
        return rows, columns


def read_matrix(place: Place) -> NDArray[np.float32]:
    """Read a matrix.

    Args:
        place: where it begins.

    Returns:
        The values ``(rows, columns)``.

    Raises:
        ValueError: there is no whole matrix, or a value is not finite; the message names the file
            and the byte.
    """
    from kaldiio.matio import read_matrix_or_vector

    with _opened(place) as file:
        if file.read(2) == b"\0B":
            _header(file, place)
            file.seek(place.offset)
            matrix: NDArray[np.float32] = read_matrix_or_vector(file).astype(np.float32)
        else:
            matrix = _read_text(file, place)
    if not np.isfinite(matrix).all():
        row, column = np.argwhere(~np.isfinite(matrix))[0]
        raise ValueError(
            f"the matrix of {place} has {matrix[row, column]} in row {row}, column {column}"
        )
    return matrix


def index_archive(path: str | Path) -> Iterator[tuple[str, Place]]:
    """Each utterance of an archive and the place of its matrix.

    Of a plain binary archive the headers alone are read; one that ends with ``.gz`` is held in
    memory.

    Args:
        path: the archive.

    Raises:
        ValueError: the archive is cut short, or holds something else.
    """
    path = Path(path)
    data = bytes(unpack(path)) if path.suffix == ".gz" else None
    with _opened(Place(path, 0, data)) as file:
        while name := _name(file):
            place = Place(path, file.tell(), data)
            if file.read(2) == b"\0B":
                file.seek(_header(file, place)[2])
            else:
                _read_text(file, place)
            yield name, place


def _opened(place: Place) -> BinaryIO:
    file: BinaryIO = place.path.open("rb") if place.data is None else io.BytesIO(place.data)
    size = file.seek(0, io.SEEK_END)
    if place.offset and place.offset >= size:
        file.close()
        raise ValueError(f"{place.path} ends at byte {size}, before a matrix at {place.offset}")
    file.seek(place.offset)
    return file


def _name(file: BinaryIO) -> str:
    """The utterance before a matrix, empty at the end of the archive."""
    letters = bytearray()
    while (letter := file.read(1)) not in (b"", b" "):
        letters += letter
    return letters.decode(errors="replace").strip()


def _header(file: BinaryIO, place: Place) -> tuple[int, int, int]:
    """Rows, columns and the byte behind a binary matrix, whose mark has been read."""
    start = file.read(24)
    kind, space, rest = start.partition(b" ")
    if not space or kind not in _LAYOUTS:
        raise ValueError(
            f"{place} is no matrix of type {', '.join(k.decode() for k in _LAYOUTS)}: it has "
            f"{start[:4].hex(' ') or 'nothing'} after its mark"
        )
    value, fixed, column = _LAYOUTS[kind]
    # float matrices have a size byte before each of the two numbers
    layout = "<8xii" if fixed else "<xixi"
    before = place.offset + 2 + len(kind) + 1
    end = before + (fixed or 10)
    size = file.seek(0, io.SEEK_END)
    if size < end:
        raise ValueError(f"{place.path} is truncated: it ends at byte {size}, inside a header")
    rows, columns = struct.unpack_from(layout, rest)
    if rows < 1 or columns < 1:
        raise ValueError(f"the matrix of {place} has no values: {rows} rows, {columns} columns")
    end += columns * column + rows * columns * value
    if size < end:
        raise ValueError(
            f"{place.path} is truncated: it ends at byte {size}, its matrix of {rows} by {columns} "
            f"at byte {place.offset} would end at {end}"
        )
    return rows, columns, end


def _read_text(file: BinaryIO, place: Place) -> NDArray[np.float32]:
    """A matrix in brackets, a row on each line."""
    file.seek(place.offset)
    before, bracket, line = file.readline().partition(b"[")
    if not bracket or before.strip():
        raise ValueError(f"{place} is no matrix: neither a binary mark nor '[' stands there")
    rows = []
    while True:
        values, end, _ = line.partition(b"]")
        if values.split():
            rows.append(values.split())
        if end:
            break
        line = file.readline()
        if not line:
            raise ValueError(f"{place.path} is truncated: a text matrix at {place.offset} has no ]")
    try:
        matrix = np.array(rows, dtype=np.float32)
    except ValueError as error:
        raise ValueError(f"the text matrix of {place} is broken: {error}") from None
    if matrix.ndim != 2:
        raise ValueError(f"the matrix of {place} has no values")
    return matrix
