"""Files: reading them within limits, and finding them in a user's folder."""

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

_CHUNK = 1 << 20
#: environment variable whose number multiplies all limits
VARIABLE = "RNNORM_LIMITS"
#: most bytes of a file held in memory: a small compressed file can unpack to any size
LIMIT = 1 << 30
# errors that gzip, lzma and zipfile raise for broken data
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
# first bytes of compressed files
_STARTS = {b"\x1f\x8b": ".gz", b"\xfd7z": ".xz", b"PK\3\4": ".zip"}


class BrokenFileError(ValueError):
    """Error for a truncated, corrupted or refused file; the message names file and place."""


def raised_limit(limit: int) -> int:
    """Multiply a limit by the number in the environment variable ``RNNORM_LIMITS``.

    Raises:
        ValueError: if the variable is not a number above 0 and at most 1e6.
    """
    return int(limit * _factor())


def how_to_raise() -> str:
    """Return the advice that an error adds to a limit it names."""
    return f"{VARIABLE}={2 * _factor():g} in the environment doubles all limits"


def _factor() -> float:
    """Read the environment variable's factor, 1 by default."""
    given = os.environ.get(VARIABLE, "1")
    try:
        factor = float(given)
    except ValueError:
        factor = math.nan
    # 1e6 times a limit is more than any file has
    if not 0 < factor <= 1e6:
        raise ValueError(f"{VARIABLE} must be a number above 0, at most 1e6, got {given!r}")
    return factor


def check_size(size: int, what: object, limit: int | None = None, unit: str = "bytes") -> None:
    """Refuse a size above the limit, ``LIMIT`` by default.

    Args:
        size: the size to check.
        what: name of the sized object, for the error.
        limit: the limit before ``RNNORM_LIMITS`` multiplies it.
        unit: unit of ``size``.

    Raises:
        BrokenFileError: if ``size`` is above the limit; the message says how to raise it.
    """
    if size > (limit := raised_limit(LIMIT if limit is None else limit)):
        raise BrokenFileError(
            f"{what} is too large: it has more than {limit:,} {unit}, the limit; {how_to_raise()}"
        )


def file_exists(path: Path) -> bool:
    """Tell whether a path exists and is not a folder; :func:`open_file` refuses special files."""
    return path.exists() and not path.is_dir()


def refuse_special(path: Path) -> int:
    """Refuse a path that is not a regular file: reading a pipe or a device may never end.

    Returns:
        The file's size in bytes.

    Raises:
        BrokenFileError: if the path is a pipe, a device or a socket, or a link to one.
        IsADirectoryError: if the path is a folder.
        FileNotFoundError: if the path does not exist.
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
    """Open a regular file to read its bytes; raise what :func:`refuse_special` raises."""
    refuse_special(path)
    return path.open("rb")


def read_into(data: bytearray, file: IO[bytes], what: object, limit: int | None = None) -> None:
    """Append an open file's bytes up to its end to ``data``.

    Raises:
        BrokenFileError: if ``data`` grows beyond the limit, ``LIMIT`` by default.
    """
    while chunk := file.read(_CHUNK):
        data += chunk
        check_size(len(data), what, limit)


def unpack(path: Path, ending: str | None = None, limit: int | None = None) -> bytes:
    """Read a whole file, plain or compressed.

    Args:
        path: the file; a .zip must hold one file, not counting those that systems add.
        ending: ``""`` for a file that is never compressed. By default the file's first bytes tell
            the compression (gzip, xz or zip), else an ending ``.xz`` or ``.zip`` does. An ending
            ``.gz`` is ignored, since a browser may have unpacked the file.
        limit: most bytes of the unpacked file; ``LIMIT`` by default.

    Raises:
        BrokenFileError: if the compressed data is truncated, corrupted or encrypted, or the file
            is larger than the limit, or a pipe or a device.
        FileNotFoundError: if the file does not exist.
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
        # an error with a file name concerns the file, not its data
        if getattr(error, "filename", None) is not None:
            raise
        raise BrokenFileError(
            f"{path} is corrupted: {error}, after {len(data)} unpacked bytes"
        ) from None
    except RuntimeError as error:
        # zipfile's error for encryption and unknown compression methods
        raise BrokenFileError(f"{path} cannot be unpacked: {error}") from None
    return bytes(data)


def _ending(path: Path) -> str:
    """Return the ending that tells a file's compression, by its first bytes or its name."""
    with path.open("rb") as file:
        first = file.read(4)
    for start, ending in _STARTS.items():
        if first.startswith(start):
            return ending
    ending = path.suffix.lower()
    return ending if ending in (".xz", ".zip") else ""


@contextmanager
def _opened(path: Path, ending: str, limit: int | None) -> Iterator[IO[bytes]]:
    """Open a file for reading its unpacked bytes."""
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
        # the standard library's reader notices truncated data
        with gzip.open(path) as file:
            yield file  # type: ignore[misc]
    elif ending == ".xz":
        with lzma.open(path, format=lzma.FORMAT_XZ) as file:
            yield file
    else:
        with path.open("rb") as file:
            yield file


# names in lower case of files and folders that macOS, Windows and Synology add
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
    """Return the folder named with ``--data-dir``, its ``~`` expanded.

    Args:
        data_dir: the folder, or None.
        what: the folder's content, for the error.

    Raises:
        FileNotFoundError: if ``data_dir`` is None.
        NotADirectoryError: if ``data_dir`` is a file.
    """
    if data_dir is None:
        raise FileNotFoundError(f"name the folder that holds {what} with --data-dir: no download")
    folder = Path(data_dir).expanduser()
    if file_exists(folder):
        raise NotADirectoryError(f"--data-dir {folder} is a file: name the folder with {what}")
    return folder


def users_file(data_dir: str | Path | None, file: str | Path) -> Path:
    """Return the path of a user's file, relative to ``--data-dir`` if given, ``~`` expanded."""
    return Path(data_dir or ".").expanduser() / Path(file).expanduser()


def added_by_system(name: PurePath) -> bool:
    """Tell whether a path in a folder or an archive was added by a system and holds no data.

    That is a hidden file (macOS adds ``._x`` to ``x``), or one with another name that systems use.
    """
    return any(
        (part.startswith(".") and part != "..") or part.lower() in _ADDED for part in name.parts
    )


def files_below(folder: Path, ending: str = "") -> list[Path]:
    """List the files of a folder and its subfolders, sorted, without those that systems add.

    Args:
        folder: the folder; links to folders are followed.
        ending: ending of the names in lower case; a name may have it in any case.
    """
    found, seen = [], {os.path.realpath(folder)}
    for parent, folders, names in os.walk(folder, followlinks=True):
        inner = {name: os.path.realpath(os.path.join(parent, name)) for name in folders}
        # a link can lead back to a folder above it
        folders[:] = [
            name
            for name, real in sorted(inner.items())
            if real not in seen and not added_by_system(PurePath(name))
        ]
        seen.update(inner[name] for name in folders)
        found += [
            Path(parent, name)
            for name in names
            if name.lower().endswith(ending) and not added_by_system(PurePath(name))
        ]
    return sorted(found)


def inner_folder(folder: Path, *names: str) -> Path | None:
    """Return the first of the named subfolders that exists, ignoring case, or None."""
    try:
        by_name = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_dir()}
    except (FileNotFoundError, NotADirectoryError):
        return None
    return next((by_name[name.lower()] for name in names if name.lower() in by_name), None)
