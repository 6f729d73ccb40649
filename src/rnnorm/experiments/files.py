"""Files: read with limits, found in a user's folder, and written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import glob
import gzip
import lzma
import math
import os
import secrets
import stat
import struct
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import IO, BinaryIO

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


def raised_limit(limit: int) -> int:
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
    if size > (limit := raised_limit(LIMIT if limit is None else limit)):
        raise BrokenFileError(
            f"{what} is too large: it has more than {limit:,} {unit}, the limit; {how_to_raise()}"
        )


def file_exists(path: Path) -> bool:
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


# in small letters: what macOS, Windows and Synology's stations put beside one's files
_ADDED = {
    "__macosx",
    "thumbs.db",
    "ehthumbs.db",
    "desktop.ini",
    "$recycle.bin",
    "system volume information",
    "icon\r",
    "@eadir",
}


def users_folder(data_dir: str | Path | None, what: str) -> Path:
    """The folder that was named with ``--data-dir``, ``~`` in it resolved.

    Args:
        data_dir: the folder.
        what: it holds, for the error.

    Raises:
        FileNotFoundError: none was named.
    """
    if data_dir is None:
        raise FileNotFoundError(f"name the folder that holds {what} with --data-dir: no download")
    return Path(data_dir).expanduser()


def users_file(data_dir: str | Path | None, file: str | Path) -> Path:
    """A user's own file, relative to ``--data-dir`` if there is one, ``~`` in both resolved."""
    return Path(data_dir or ".").expanduser() / Path(file).expanduser()


def added_by_system(name: PurePath) -> bool:
    """Whether a file's name, within a folder or an archive, is none of data.

    Such are hidden files, as macOS adds ``._x`` to ``x``, and what systems add by other names.
    """
    return any(
        (part.startswith(".") and part != "..") or part.lower() in _ADDED for part in name.parts
    )


def files_below(folder: Path, ending: str = "") -> list[Path]:
    """The files of a folder and of the folders in it, sorted, without those that systems add.

    Args:
        folder: the folder; links to folders in it are followed.
        ending: of the names, in small letters; a name may have it in any case.
    """
    found, seen = [], {os.path.realpath(folder)}
    for place, folders, names in os.walk(folder, followlinks=True):
        inner = {name: os.path.realpath(os.path.join(place, name)) for name in folders}
        # a link can lead back to a folder above it
        folders[:] = [
            name
            for name, real in sorted(inner.items())
            if real not in seen and not added_by_system(PurePath(name))
        ]
        seen.update(inner[name] for name in folders)
        found += [
            Path(place, name)
            for name in names
            if name.lower().endswith(ending) and not added_by_system(PurePath(name))
        ]
    return sorted(found)


def inner_folder(folder: Path, *names: str) -> Path | None:
    """The first of these folders that is in a folder, in any case; None if there is none."""
    try:
        there = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_dir()}
    except (FileNotFoundError, NotADirectoryError):
        return None
    return next((there[name.lower()] for name in names if name.lower() in there), None)


def write_whole(path: Path, data: bytes | memoryview, keep: Path | None = None) -> None:
    """Write a file so that it is, at any time, either the old or the new one, never a part.

    Args:
        path: the file.
        data: what it will hold.
        keep: what the old file is called from then on; by default it is gone.

    Raises:
        OSError: the disk is full or not writable, which names the file; the old one stays.
    """
    for stale in stale_partials(path):
        stale.unlink(missing_ok=True)
    partial = partial_of(path)
    try:
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            os.replace(path, keep)
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            # that the disk is full is told without a name, all else with the partial file's
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise
    _flush_folder(path.parent)


def refuse_folder(path: Path) -> None:
    """Refuse to write a file where a folder is, before the work for it is done.

    Raises:
        IsADirectoryError: there is one.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file")


def partial_of(path: Path) -> Path:
    """A name for what will be ``path`` when it is complete, which no other process has."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")


def stale_partials(path: Path) -> Iterator[Path]:
    """What kills have left behind: no write takes an hour."""
    for partial in path.parent.glob(f"{glob.escape(path.name)}.*.partial"):
        # another process may be quicker to remove it
        with contextlib.suppress(FileNotFoundError):
            if time.time() - partial.stat().st_mtime > 3600:
                yield partial


def _flush_folder(folder: Path) -> None:
    """Let the new name of a file in it reach the disk too."""
    # not every system lets a folder be opened or flushed: the file itself is whole all the same
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
