"""Reader of whole files, plain or compressed, that finds what is broken in them."""

from __future__ import annotations

import gzip
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
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


class BrokenFileError(ValueError):
    """A file is not the whole one that it should be; the message names the file and the place."""


def check_size(size: int, what: object, limit: int | None = None) -> None:
    """Refuse to hold more bytes in memory than the limit, ``LIMIT`` if none is given.

    Raises:
        BrokenFileError: there are more; the message names the limit.
    """
    if size > (limit := LIMIT if limit is None else limit):
        raise BrokenFileError(f"{what} is too large: it has more than {limit:,} bytes, the limit")


def unpack(path: Path, ending: str | None = None, limit: int | None = None) -> bytes:
    """Read a whole file, plain or compressed.

    Args:
        path: the file; a .zip must hold one file alone.
        ending: how it is compressed, ``".gz"``, ``".xz"``, ``".zip"`` or ``""`` for not at all; by
            default its own ending says it.
        limit: the most bytes that it may have, unpacked; ``LIMIT`` by default.

    Raises:
        BrokenFileError: the compressed data is truncated, corrupted or encrypted, or the file is
            larger than the limit.
        FileNotFoundError: there is no such file.
    """
    data = bytearray()
    try:
        with _opened(path, path.suffix if ending is None else ending) as file:
            while chunk := file.read(_CHUNK):
                data += chunk
                check_size(len(data), path, limit)
    except EOFError:
        raise BrokenFileError(
            f"{path} is truncated: it ends at byte {path.stat().st_size}, in the middle of its "
            f"compressed data, after {len(data)} unpacked bytes"
        ) from None
    except BrokenFileError:
        raise
    except BROKEN as error:
        # one with a name is of the file itself, such as that it is missing
        if getattr(error, "filename", None) is not None:
            raise
        raise BrokenFileError(
            f"{path} is corrupted: {error}, after {len(data)} unpacked bytes"
        ) from None
    except RuntimeError as error:
        # what zipfile says of encryption, and of methods that it does not know
        raise BrokenFileError(f"{path} cannot be unpacked: {error}") from None
    return bytes(data)


@contextmanager
def _opened(path: Path, ending: str) -> Iterator[BinaryIO]:
    if ending == ".zip":
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            if len(names) != 1:
                raise BrokenFileError(f"{path} must hold one file, it holds {len(names)}")
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
