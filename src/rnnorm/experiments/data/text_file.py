"""Reader of whole files, plain or compressed, and of text, that finds what is broken in them."""

from __future__ import annotations

import gzip
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_CHUNK = 1 << 20
#: bytes of a file that are held in memory: a few compressed ones can unpack to any number
LIMIT = 1 << 30
# what gzip, lzma and zipfile raise where data is broken
BROKEN = (
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    struct.error,
    OSError,
    ValueError,
    LookupError,
    OverflowError,
)
ENDINGS = ("", ".gz", ".xz", ".zip")
# what no text holds: control characters other than tab, line feed, form feed and return
_BINARY = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")


class TextError(ValueError):
    """A file is not the whole text that it should be; the message names the file and the byte."""


def find_text(folder: Path, name: str) -> Path | None:
    """The file of a published name in a folder, plain or with the ending of a compressed one."""
    paths = (folder / f"{name}{ending}" for ending in ENDINGS)
    return next((path for path in paths if path.is_file()), None)


def find_texts(folder: Path, sub_folder: str, names: Sequence[str]) -> list[Path]:
    """The files of published names in a folder, or in its sub-folder where there is one.

    Raises:
        FileNotFoundError: one is missing.
    """
    if (folder / sub_folder).is_dir():
        folder /= sub_folder
    found = {name: find_text(folder, name) for name in names}
    if missing := [name for name, path in found.items() if path is None]:
        endings = ", ".join(ending for ending in ENDINGS if ending)
        raise FileNotFoundError(
            f"{folder} lacks {', '.join(missing)} (plain, or ending with {endings}): put them "
            "there, or name another folder with --data-dir"
        )
    return [path for path in found.values() if path is not None]


def read_text(path: str | Path) -> str:
    """Read a whole UTF-8 text, from a plain file or one that ends with .gz, .xz or .zip.

    Args:
        path: the file; a .zip must hold one file alone.

    Returns:
        The text, without a byte order mark, and with line feeds alone at the ends of lines.

    Raises:
        TextError: the file is empty, truncated, corrupted, binary, not UTF-8 or too large.
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    return as_text(unpack(path), path)


def as_text(data: bytes, path: object) -> str:
    """A file's bytes as a text.

    Args:
        data: the bytes.
        path: the file, for the error.

    Raises:
        TextError: they are none, binary or not UTF-8.
    """
    if not data:
        raise TextError(f"{path} is empty: it has no text at byte 0")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.end >= len(data) and "unexpected end" in error.reason:
            raise TextError(
                f"{path} is truncated: it ends in the middle of a character at byte {error.start}"
            ) from None
        raise TextError(
            f"{path} is no UTF-8 text: it has {data[error.start]:02x} at byte {error.start}"
        ) from None
    if bad := _BINARY.search(text):
        at = len(text[: bad.start()].encode())
        raise TextError(f"{path} is binary: it has {ord(bad.group()):02x} at byte {at}")
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def place(text: str, position: int) -> str:
    """Line and column, from 1 on, of the character with this index."""
    line, column = text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)
    return f"line {line}, column {column}"


def check_size(size: int, what: object, limit: int | None = None) -> None:
    """Refuse to hold more bytes in memory than the limit, ``LIMIT`` if none is given.

    Raises:
        TextError: there are more; the message names the limit.
    """
    if size > (limit := LIMIT if limit is None else limit):
        raise TextError(f"{what} is too large: it has more than {limit:,} bytes, the limit")


def unpack(path: Path, ending: str | None = None, limit: int | None = None) -> bytes:
    """Read a whole file, plain or compressed.

    Args:
        path: the file; a .zip must hold one file alone.
        ending: how it is compressed, ``".gz"``, ``".xz"``, ``".zip"`` or ``""`` for not at all; by
            default its own ending says it.
        limit: the most bytes that it may have, unpacked; ``LIMIT`` by default.

    Raises:
        TextError: the compressed data is truncated, corrupted or encrypted, or the file is larger
            than the limit.
        FileNotFoundError: there is no such file.
    """
    data = bytearray()
    try:
        with _opened(path, path.suffix if ending is None else ending) as file:
            while chunk := file.read(_CHUNK):
                data += chunk
                check_size(len(data), path, limit)
    except EOFError:
        raise TextError(
            f"{path} is truncated: it ends at byte {path.stat().st_size}, in the middle of its "
            f"compressed data, after {len(data)} unpacked bytes"
        ) from None
    except TextError:
        raise
    except BROKEN as error:
        # one with a name is of the file itself, such as that it is missing
        if getattr(error, "filename", None) is not None:
            raise
        raise TextError(f"{path} is corrupted: {error}, after {len(data)} unpacked bytes") from None
    except RuntimeError as error:
        # what zipfile says of encryption, and of methods that it does not know
        raise TextError(f"{path} cannot be unpacked: {error}") from None
    return bytes(data)


@contextmanager
def _opened(path: Path, ending: str) -> Iterator[BinaryIO]:
    if ending == ".zip":
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            if len(names) != 1:
                raise TextError(f"{path} must hold one file, it holds {len(names)}")
            with archive.open(names[0]) as file:
                yield file  # type: ignore[misc]
    elif ending == ".gz":
        # read in the standard library's own way, which finds the end of the data missing
        with gzip.open(path) as file:
            yield file  # type: ignore[misc]
    elif ending == ".xz":
        with lzma.open(path, format=lzma.FORMAT_XZ) as file:
            yield file  # type: ignore[misc]
    else:
        with path.open("rb") as file:
            yield file
