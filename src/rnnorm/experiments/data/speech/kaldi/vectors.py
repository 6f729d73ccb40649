"""Reader of Kaldi's archives of integer vectors: alignments."""

from __future__ import annotations

import codecs
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rnnorm.experiments.data.speech.kaldi.scp import LONGEST_NAME
from rnnorm.experiments.data.whole_file import check_size, unpack

# each number stands behind a byte that says how long it is
_NUMBER = np.dtype([("size", "i1"), ("value", "<i4")])
# bytes of a line of numbers, each of which takes many times its size until it is one
_LONGEST_LINE = 1 << 26


def read_int_vectors(path: str | Path) -> dict[str, NDArray[np.int32]]:
    """Read a whole archive of integer vectors, binary or text, plain or gzipped.

    Args:
        path: the archive, such as ``ali.1.gz``.

    Returns:
        A vector ``(N,)`` for each utterance.

    Raises:
        ValueError: the archive is truncated, holds something else, or an utterance twice; the
            message names the file and the (unpacked) byte.
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    # what an editor adds to a text
    data = unpack(path).removeprefix(codecs.BOM_UTF8)
    vectors: dict[str, NDArray[np.int32]] = {}
    position = 0
    while position < len(data):
        space = data.find(b" ", position, position + LONGEST_NAME)
        if space < 0 and len(data) > position + LONGEST_NAME:
            raise ValueError(f"{path} is no archive of integers: no utterance at byte {position}")
        if space < 0 and not data[position:].strip():
            break
        if space < 0:
            raise ValueError(f"{path} is truncated: it ends in the utterance at byte {position}")
        name = data[position:space].strip().decode(errors="replace")
        if not name or "\n" in name:
            raise ValueError(f"{path} is no archive of integers: no utterance at byte {position}")
        if name in vectors:
            raise ValueError(f"{path} has utterance {name!r} a second time, at byte {position}")
        read = _binary if data[space + 1 : space + 3] == b"\0B" else _text
        vectors[name], position = read(data, space + 1, path)
    return vectors


def _binary(data: bytes, start: int, path: Path) -> tuple[NDArray[np.int32], int]:
    """A vector, and the byte behind it."""
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
    """A vector on one line, and the byte behind it."""
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
