"""Matrices of Kaldi archives, of floats, compressed or text, checked before they are decoded."""

from __future__ import annotations

import codecs
import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from rnnorm.experiments.data.speech.kaldi.scp import LONGEST_NAME, Place
from rnnorm.experiments.data.whole_file import check_size, open_file, unpack

# bytes of a value, and of what stands before the values: once, and for each column
_LAYOUTS = {
    b"FM": (4, 0, 0),
    b"DM": (8, 0, 0),
    b"CM": (1, 16, 8),
    b"CM2": (2, 16, 0),
    b"CM3": (1, 16, 0),
}
# bytes of a matrix of text, each number of which takes many times its size until it is one
_LONGEST_TEXT = 1 << 26


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
            # what overflows is found below
            with np.errstate(all="ignore"):
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
    data = unpack(path) if path.suffix == ".gz" else None
    with _opened(Place(path, 0, data)) as file:
        # what an editor adds to a text
        if file.read(3) != codecs.BOM_UTF8:
            file.seek(0)
        while name := _name(file, path):
            place = Place(path, file.tell(), data)
            if file.read(2) == b"\0B":
                file.seek(_header(file, place)[2])
            else:
                _read_text(file, place)
            yield name, place


def _opened(place: Place) -> BinaryIO:
    file = open_file(place.path) if place.data is None else io.BytesIO(place.data)
    size = file.seek(0, io.SEEK_END)
    if place.offset and place.offset >= size:
        file.close()
        raise ValueError(f"{place.path} ends at byte {size}, before a matrix at {place.offset}")
    file.seek(place.offset)
    return file


def _name(file: BinaryIO, path: Path) -> str:
    """The utterance before a matrix, empty at the end of the archive."""
    start = file.tell()
    letters, space, _ = file.read(LONGEST_NAME).partition(b" ")
    name = letters.strip().decode(errors="replace")
    # a text archive may end with an empty line
    if (space and not name) or (not space and len(letters) == LONGEST_NAME):
        raise ValueError(f"{path} has no utterance before the matrix at byte {start}")
    file.seek(start + len(letters) + len(space))
    return name


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
    if not fixed and (rest[0], rest[5]) != (4, 4):
        raise ValueError(
            f"the matrix of {place} has numbers of {rest[0]} and {rest[5]} bytes in its header, "
            "not of 4"
        )
    rows, columns = struct.unpack_from(layout, rest)
    if rows < 1 or columns < 1:
        raise ValueError(f"the matrix of {place} has no values: {rows} rows, {columns} columns")
    end += columns * column + rows * columns * value
    if size < end:
        raise ValueError(
            f"{place.path} is truncated: it ends at byte {size}, its matrix of {rows} by {columns} "
            f"at byte {place.offset} would end at {end}"
        )
    check_size(end - place.offset, f"the matrix of {place}")
    return rows, columns, end


def _read_text(file: BinaryIO, place: Place) -> NDArray[np.float32]:
    """A matrix in brackets, a row on each line."""
    file.seek(place.offset)
    before, bracket, line = file.readline(_LONGEST_TEXT + 1).partition(b"[")
    if not bracket or before.strip():
        raise ValueError(f"{place} is no matrix: neither a binary mark nor '[' stands there")
    rows = []
    while True:
        check_size(file.tell() - place.offset, f"the text matrix of {place}", _LONGEST_TEXT)
        values, end, _ = line.partition(b"]")
        if row := values.split():
            rows.append(row)
        if end:
            break
        line = file.readline(_LONGEST_TEXT + 1)
        if not line:
            raise ValueError(f"{place.path} is truncated: a text matrix at {place.offset} has no ]")
    try:
        matrix = np.array(rows, dtype=np.float32)
    except ValueError as error:
        raise ValueError(f"the text matrix of {place} is broken: {str(error)[:80]}") from None
    if matrix.ndim != 2:
        raise ValueError(f"the matrix of {place} has no values")
    return matrix
