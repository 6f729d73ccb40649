"""Files that are, at any time, either the old or the new one, never a part."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path


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
