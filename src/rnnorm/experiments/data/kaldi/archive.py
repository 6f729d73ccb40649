"""Readers of Kaldi's script files and archives of matrices, with checks before decoding."""

from __future__ import annotations

import codecs
import io
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rnnorm.experiments.data.text_file import placed_lines
from rnnorm.experiments.files import check_size, file_exists, open_file, refuse_special, unpack

#: most bytes of an utterance's name
LONGEST_NAME = 4096
#: what stands behind an utterance's name; Kaldi writes a space and also reads a tab
NAME_END = re.compile(rb"[ \t]")
_OFFSET = re.compile("[0-9]{1,18}")


class MatrixPosition(NamedTuple):
    """The position of a matrix in a file.

    Attributes:
        path: the file.
        offset: first byte of the matrix, counted in the unpacked file.
        data: the whole unpacked file if it is compressed, else None.
    """

    path: Path
    offset: int
    data: bytes | None = None

    def __str__(self) -> str:
        unpacked = "" if self.data is None else " unpacked"
        return f"{self.path} at byte {self.offset}{unpacked}"


def read_scp(path: str | Path) -> dict[str, MatrixPosition]:
    """Read a script file (``feats.scp``) of lines ``utterance archive:offset``.

    A relative path is looked up in the folder of the script file, then in the working directory.
    No command is run: a line that ends with ``|`` is refused.

    Args:
        path: the script file.

    Returns:
        The position of each utterance's matrix.

    Raises:
        ValueError: if a line is a command, names a range of rows, lacks an archive or has an offset
            that is not a number, or if an utterance occurs twice; the message names file and
            the line.
        FileNotFoundError: if there is no such file, or it names an archive that does not exist.
    """
    path = Path(path)
    positions: dict[str, MatrixPosition] = {}
    archives: dict[str, Path] = {}
    for where, line in placed_lines(path):
        fields = split_fields(line, 1)
        if len(fields) < 2:
            raise ValueError(f"{where} must be an utterance and its archive, got {line[:80]!r}")
        name, value = fields
        if "|" in (value[0], value[-1]):
            raise ValueError(
                f"{where} is a command, and none is run: {value[:80]!r}. Write its output to an "
                "archive with copy-feats, and name that"
            )
        if value.endswith("]"):
            raise ValueError(f"{where} names a range of rows, which is not read: {value[-80:]!r}")
        archive, colon, offset = value.rpartition(":")
        if not colon:
            archive, offset = value, "0"
        elif not _OFFSET.fullmatch(offset):
            raise ValueError(
                f"{where} has the offset {offset[:80]!r}, which is not a number of bytes"
            )
        if name in positions:
            raise ValueError(f"{where} names utterance {name!r} a second time")
        if archive not in archives:
            archives[archive] = _find(archive, path, where)
        positions[name] = MatrixPosition(archives[archive], int(offset))
    return positions


def split_fields(line: str, most: int = -1) -> list[str]:
    """Split a line at ASCII spaces and tabs; as in Kaldi, a name may hold other Unicode spaces."""
    return [field.decode() for field in line.encode().strip().split(maxsplit=most)]


def _find(archive: str, scp: Path, where: str) -> Path:
    for path in (scp.parent / archive, Path(archive)):
        if file_exists(path):
            refuse_special(path)
            return path
    raise FileNotFoundError(
        f"{where} names {archive}, which is neither in {scp.parent} nor in the working directory"
    )


# for each type of matrix: bytes of a value, of the global header, and of a column's header
_LAYOUTS = {
    b"FM": (4, 0, 0),
    b"DM": (8, 0, 0),
    b"CM": (1, 16, 8),
    b"CM2": (2, 16, 0),
    b"CM3": (1, 16, 0),
}
# most bytes of a text matrix, since parsing it takes many times its size in memory
_LONGEST_TEXT = 1 << 26


def matrix_shape(position: MatrixPosition) -> tuple[int, int]:
    """Return the rows and columns of a matrix; only the header of a binary one is read.

    Args:
        position: position of the matrix.

    Raises:
        ValueError: if there is no complete matrix; the message names the file and the byte.
    """
    with _opened(position) as file:
        if file.read(2) == b"\0B":
            return _header(file, position)[:2]
        rows, columns = _read_text(file, position).shape
        return rows, columns


def read_matrix(position: MatrixPosition) -> NDArray[np.float32]:
    """Read a matrix.

    Args:
        position: position of the matrix.

    Returns:
        The values ``(rows, columns)``.

    Raises:
        ValueError: if the matrix is incomplete, or a value is not finite; the message names the
            file and the byte.
    """
    from kaldiio.matio import read_matrix_or_vector

    with _opened(position) as file:
        if file.read(2) == b"\0B":
            _header(file, position)
            file.seek(position.offset)
            # overflow becomes infinite, which the check of finite values reports
            with np.errstate(all="ignore"):
                matrix: NDArray[np.float32] = read_matrix_or_vector(file).astype(np.float32)
        else:
            matrix = _read_text(file, position)
    if not np.isfinite(matrix).all():
        row, column = np.argwhere(~np.isfinite(matrix))[0]
        raise ValueError(
            f"the matrix of {position} has {matrix[row, column]} in row {row}, column {column}"
        )
    return matrix


def index_archive(path: str | Path) -> Iterator[tuple[str, MatrixPosition]]:
    """List each utterance of an archive with the position of its matrix.

    Only the headers of a plain binary archive are read; an archive that ends with ``.gz`` is held
    in memory.

    Args:
        path: the archive.

    Raises:
        ValueError: if the archive is truncated, or holds something other than matrices.
    """
    path = Path(path)
    data = unpack(path) if path.suffix == ".gz" else None
    with _opened(MatrixPosition(path, 0, data)) as file:
        # editors may add a byte order mark
        if file.read(3) != codecs.BOM_UTF8:
            file.seek(0)
        while name := _name(file, path):
            position = MatrixPosition(path, file.tell(), data)
            if file.read(2) == b"\0B":
                file.seek(_header(file, position)[2])
            else:
                _read_text(file, position)
            yield name, position


def _opened(position: MatrixPosition) -> BinaryIO:
    """Open the file of a matrix at the position of the matrix."""
    file = open_file(position.path) if position.data is None else io.BytesIO(position.data)
    size = file.seek(0, io.SEEK_END)
    if position.offset and position.offset >= size:
        file.close()
        raise ValueError(
            f"{position.path} ends at byte {size}, before a matrix at {position.offset}"
        )
    file.seek(position.offset)
    return file


def _name(file: BinaryIO, path: Path) -> str:
    """Read the utterance's name before a matrix; empty at the end of the archive."""
    start = file.tell()
    letters, *rest = NAME_END.split(file.read(LONGEST_NAME), maxsplit=1)
    name = letters.strip().decode(errors="replace")
    # a text archive may end with an empty line
    if (rest and not name) or (not rest and len(letters) == LONGEST_NAME):
        raise ValueError(f"{path} has no utterance before the matrix at byte {start}")
    file.seek(start + len(letters) + len(rest))
    return name


def _header(file: BinaryIO, position: MatrixPosition) -> tuple[int, int, int]:
    """Read the header of a binary matrix, behind its mark.

    Returns:
        Rows, columns, and the position of the byte behind the matrix.
    """
    start = file.read(24)
    kind, space, rest = start.partition(b" ")
    if not space or kind not in _LAYOUTS:
        raise ValueError(
            f"{position} is not a matrix of type {', '.join(k.decode() for k in _LAYOUTS)}: it has "
            f"{start[:4].hex(' ') or 'nothing'} after its mark"
        )
    value, fixed, column = _LAYOUTS[kind]
    # float matrices have a byte with the size before each of the two numbers
    layout = "<8xii" if fixed else "<xixi"
    before = position.offset + 2 + len(kind) + 1
    end = before + (fixed or 10)
    size = file.seek(0, io.SEEK_END)
    if size < end:
        raise ValueError(f"{position.path} is truncated: it ends at byte {size}, inside a header")
    if not fixed and (rest[0], rest[5]) != (4, 4):
        raise ValueError(
            f"the matrix of {position} has numbers of {rest[0]} and {rest[5]} bytes in its header, "
            "not of 4"
        )
    rows, columns = struct.unpack_from(layout, rest)
    if rows < 1 or columns < 1:
        raise ValueError(f"the matrix of {position} has no values: {rows} rows, {columns} columns")
    end += columns * column + rows * columns * value
    if size < end:
        raise ValueError(
            f"{position.path} is truncated: it ends at byte {size}, its matrix of {rows} by "
            f"{columns} at byte {position.offset} would end at {end}"
        )
    check_size(end - position.offset, f"the matrix of {position}")
    return rows, columns, end


def _read_text(file: BinaryIO, position: MatrixPosition) -> NDArray[np.float32]:
    """Read a text matrix: in brackets, with a row on each line."""
    file.seek(position.offset)
    before, bracket, line = file.readline(_LONGEST_TEXT + 1).partition(b"[")
    if not bracket or before.strip():
        raise ValueError(f"{position} is not a matrix: neither a binary mark nor '[' stands there")
    rows = []
    while True:
        check_size(file.tell() - position.offset, f"the text matrix of {position}", _LONGEST_TEXT)
        values, end, behind = line.partition(b"]")
        if row := values.split():
            rows.append(row)
        if behind.strip():
            raise ValueError(
                f"the text matrix of {position} must end its line, got {behind[:40]!r} behind its ]"
            )
        if end:
            break
        line = file.readline(_LONGEST_TEXT + 1)
        if not line:
            raise ValueError(
                f"{position.path} is truncated: a text matrix at {position.offset} has no ]"
            )
    try:
        matrix = np.array(rows, dtype=np.float32)
    except ValueError as error:
        raise ValueError(f"the text matrix of {position} is broken: {str(error)[:80]}") from None
    if matrix.ndim != 2:
        raise ValueError(f"the matrix of {position} has no values")
    return matrix
