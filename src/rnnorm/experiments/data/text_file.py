"""Reader of text files, plain or compressed, that finds what is broken in them."""

from __future__ import annotations

import gzip
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_CHUNK = 1 << 20
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
        The text; line ends are left as they are.

    Raises:
        TextError: the file is empty, truncated, corrupted, binary or not UTF-8.
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    data = unpack(path)
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
        at = byte_offset(text, bad.start())
        raise TextError(f"{path} is binary: it has {ord(bad.group()):02x} at byte {at}")
    return text


def byte_offset(text: str, position: int) -> int:
    """Byte of a UTF-8 file at which the character with this index begins."""
    return len(text[:position].encode())


def unpack(path: Path) -> bytearray:
    """Read a whole file, plain or compressed as its ending says.

    Raises:
        TextError: the compressed data is truncated or corrupted.
        FileNotFoundError: there is no such file.
    """
    data = bytearray()
    try:
        with _opened(path) as file:
            while chunk := file.read(_CHUNK):
                data += chunk
    except EOFError:
        raise TextError(
            f"{path} is truncated: it ends at byte {path.stat().st_size}, in the middle of its "
            f"compressed data, after {len(data)} unpacked bytes"
        ) from None
    except (zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        raise TextError(f"{path} is corrupted: {error}, after {len(data)} unpacked bytes") from None
    return data


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            if len(names) != 1:
                raise TextError(f"{path} must hold one file, it holds {len(names)}")
            with archive.open(names[0]) as file:
                yield file  # type: ignore[misc]
    elif path.suffix in (".gz", ".xz"):
        # read in the standard library's own way, which finds the end of the data missing
        opener = gzip.open if path.suffix == ".gz" else lzma.open
        with opener(path, "rb") as file:
            yield file  # type: ignore[misc]
    else:
        with path.open("rb") as file:
            yield file
