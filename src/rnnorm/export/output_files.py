"""Files that an export writes: refused before the work, and whole or not there."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def check_path(*files: Path) -> None:
    """Refuse paths at which no file can be written, before the work for the files is done.

    Raises:
        FileNotFoundError: if the folder of a file does not exist.
        IsADirectoryError: if a path is a folder.
        ValueError: if a path has no name, or is a device or pipe, which a file would replace.
    """
    for file in files:
        if not file.name:
            raise ValueError(f"path must name a file, got {str(file)!r}")
        if not file.parent.is_dir():
            raise FileNotFoundError(f"path must be in a folder that exists, got {file}")
        if file.is_dir():
            raise IsADirectoryError(f"path must name a file, but {file} is a folder")
        if file.exists() and not file.is_file():
            raise ValueError(f"path must name a file, but {file} is a device or a pipe")


@contextmanager
def written_whole(*files: Path) -> Iterator[list[Path]]:
    """Give paths to write to, which take the places of the files if the block succeeds.

    Raises:
        OSError: if the disk is full or not writable; the message names the file.
    """
    drawn = secrets.token_hex(4)
    partial = [file.with_name(f"{file.name}.{drawn}.partial") for file in files]
    try:
        yield partial
        for part, file in zip(partial, files, strict=True):
            with naming(file):
                part.replace(file)
    finally:
        for part in partial:
            # on a disk that cannot be written the error of writing is the one to see
            with suppress(OSError):
                part.unlink(missing_ok=True)


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Name the file in an error of writing it, such as that of a full disk, which has no name."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(file)) from error
