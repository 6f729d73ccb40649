"""Writing output: files whole or not at all, and paths that are refused before the work."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from rnnorm.experiments.files import file_exists


def write_whole(path: Path, data: bytes | memoryview, keep: Path | None = None) -> None:
    """Write a file atomically: at any time it is whole, with the old or the new content.

    Args:
        path: the file.
        data: the new content.
        keep: the old file's new path; by default the old file is lost.

    Raises:
        OSError: if the disk is full or not writable; the message names the file, the old one stays.
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
            # a full disk gives an error without a file name, others name the partial file
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise
    _flush_folder(path.parent)


def check_output_file(path: Path) -> None:
    """Refuse what no output file may replace, before the work for the file is done.

    Raises:
        IsADirectoryError: if ``path`` is a folder.
        NotADirectoryError: if a folder above it is a file.
        ValueError: if it is a device or a pipe.
    """
    refuse_file(path.parent)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a device or a pipe: name a file")


def refuse_file(folder: Path) -> None:
    """Refuse a file as the path of an output folder, before the work for the folder is done.

    Raises:
        NotADirectoryError: if ``folder`` or a folder above it is a file.
    """
    for path in (folder, *folder.parents):
        if file_exists(path):
            raise NotADirectoryError(f"{path} is not a folder: it is a file")


def partial_of(path: Path) -> Path:
    """Return a unique temporary name for a file or folder that becomes ``path`` when complete."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")


def stale_partials(path: Path) -> Iterator[Path]:
    """Yield partial files of ``path`` that killed processes left more than an hour ago."""
    for partial in path.parent.glob(f"{glob.escape(path.name)}.*.partial"):
        # another process may be quicker to remove it
        with contextlib.suppress(FileNotFoundError):
            if time.time() - partial.stat().st_mtime > 3600:
                yield partial


def _flush_folder(folder: Path) -> None:
    """Flush a folder to the disk, so that a renamed file's new name survives a crash."""
    # some systems cannot open or flush a folder; the file is whole without it
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
