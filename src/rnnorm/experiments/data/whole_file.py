"""Reader of whole files, plain or compressed, that finds what is broken in them."""

from __future__ import annotations

import errno
import gzip
import lzma
import math
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import IO, BinaryIO

from rnnorm.experiments.data.users_folder import added_by_system

_CHUNK = 1 << 20
#: environment variable: all limits are multiplied by its number
VARIABLE = "RNNORM_LIMITS"
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


# first bytes of what is compressed
_STARTS = {b"\x1f\x8b": ".gz", b"\xfd7z": ".xz", b"PK\3\4": ".zip"}


class BrokenFileError(ValueError):
    """A file is not the whole one that it should be; the message names the file and the place."""


def allowed(limit: int) -> int:
    """A limit, multiplied by the number in the environment variable ``RNNORM_LIMITS``.

    Raises:
        ValueError: the variable is no number above 0.
    """
    return int(limit * _factor())


def how_to_raise() -> str:
    """What an error that names a limit says of larger ones."""
    return f"{VARIABLE}={2 * _factor():g} in the environment doubles all limits"


def _factor() -> float:
    given = os.environ.get(VARIABLE, "1")
    try:
        factor = float(given)
    except ValueError:
        factor = math.nan
    # far more than any file, and still a number of bytes
    if not 0 < factor <= 1e6:
        raise ValueError(f"{VARIABLE} must be a number above 0, at most 1e6, got {given!r}")
    return factor


def check_size(size: int, what: object, limit: int | None = None, unit: str = "bytes") -> None:
    """Refuse to hold more in memory than the limit, ``LIMIT`` if none is given.

    Args:
        size: how much there is.
        what: has that size, for the error.
        limit: before ``RNNORM_LIMITS`` multiplies it.
        unit: what is counted.

    Raises:
        BrokenFileError: there is more; the message names the limit and how to raise it.
    """
    if size > (limit := allowed(LIMIT if limit is None else limit)):
        raise BrokenFileError(
            f"{what} is too large: it has more than {limit:,} {unit}, the limit; {how_to_raise()}"
        )


def is_there(path: Path) -> bool:
    """Whether a path is there and no folder; :func:`open_file` refuses what is no file either."""
    return path.exists() and not path.is_dir()


def refuse_special(path: Path) -> int:
    """Refuse what is no regular file: a pipe would be waited for, a device need not end.

    Returns:
        How many bytes the file has.

    Raises:
        BrokenFileError: the path is a pipe, a device or a socket, or a link to one.
        IsADirectoryError: the path is a folder.
        FileNotFoundError: there is no such file.
    """
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a folder, not a file", str(path))
    if not stat.S_ISREG(found.st_mode):
        tests = {"pipe": stat.S_ISFIFO, "socket": stat.S_ISSOCK}
        kind = next((name for name, test in tests.items() if test(found.st_mode)), "device")
        raise BrokenFileError(
            f"{path} is a {kind}, not a file: write what it gives into a file, and name that"
        )
    return found.st_size


def open_file(path: Path) -> BinaryIO:
    """Open a regular file to read its bytes; raises what :func:`refuse_special` does."""
    refuse_special(path)
    return path.open("rb")


def read_into(data: bytearray, file: IO[bytes], what: object, limit: int | None = None) -> None:
    """Read to the end of what is open.

    Raises:
        BrokenFileError: there are more bytes than the limit, ``LIMIT`` by default.
    """
    while chunk := file.read(_CHUNK):
        data += chunk
        check_size(len(data), what, limit)


def unpack(path: Path, ending: str | None = None, limit: int | None = None) -> bytes:
    """Read a whole file, plain or compressed.

    Args:
        path: the file; a .zip must hold one file alone, beside those that systems add.
        ending: ``""`` for a file that is never compressed. By default the first bytes say how the
            file is compressed, by gzip, xz or zip, and where they do not, an ending ``.xz`` or
            ``.zip``. A browser may have unpacked what ends with ``.gz``.
        limit: the most bytes that it may have, unpacked; ``LIMIT`` by default.

    Raises:
        BrokenFileError: the compressed data is truncated, corrupted or encrypted, or the file is
            larger than the limit, or a pipe or a device.
        FileNotFoundError: there is no such file.
    """
    check_size(refuse_special(path), path, limit)
    data = bytearray()
    try:
        with _opened(path, _ending(path) if ending is None else ending, limit) as file:
            read_into(data, file, path, limit)
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


def _ending(path: Path) -> str:
    """How a file is compressed."""
    with path.open("rb") as file:
        first = file.read(4)
    for start, ending in _STARTS.items():
        if first.startswith(start):
            return ending
    ending = path.suffix.lower()
    return ending if ending in (".xz", ".zip") else ""


@contextmanager
def _opened(path: Path, ending: str, limit: int | None) -> Iterator[IO[bytes]]:
    if ending == ".zip":
        with zipfile.ZipFile(path) as archive:
            files = [each for each in archive.infolist() if not each.is_dir()]
            files = [each for each in files if not added_by_system(PurePath(each.filename))]
            if len(files) != 1:
                raise BrokenFileError(f"{path} must hold one file, it holds {len(files)}")
            check_size(files[0].file_size, path, limit)
            with archive.open(files[0]) as file:
                yield file
    elif ending == ".gz":
        # read in the standard library's own way, which finds the end of the data missing
        with gzip.open(path) as file:
            yield file  # type: ignore[misc]
    elif ending == ".xz":
        with lzma.open(path, format=lzma.FORMAT_XZ) as file:
            yield file
    else:
        with path.open("rb") as file:
            yield file
