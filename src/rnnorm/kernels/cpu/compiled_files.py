"""The files of compiled cells in a cache on disk: which are trusted, and a lock for each."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rnnorm.kernels.run_time_compilation import make_private

if sys.platform != "win32":
    import fcntl

_log = logging.getLogger("rnnorm")


def distrusted(found: os.stat_result) -> str:
    """Say why another user may have written a file or folder, empty if none may."""
    if found.st_uid != os.geteuid():
        return f"belongs to the user {found.st_uid}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write (mode {stat.S_IMODE(found.st_mode):o})"
    return ""


def digest(key: str, path: Path) -> str:
    """Return a digest of a file's content and of the key that it was made for."""
    return hashlib.sha256(key.encode() + path.read_bytes()).hexdigest()[:32]


def cached(cache: Path, key: str) -> Path | None:
    """Return the path of a compiled cell in the cache, whose name has a digest of its content.

    A file that is not whole, or that another user may have written, is deleted.
    """
    for path in cache.glob(f"{key}-*.so"):
        # another process may delete it
        with contextlib.suppress(FileNotFoundError):
            found = os.lstat(path)
            why = "" if stat.S_ISREG(found.st_mode) else "is not a regular file"
            why = why or distrusted(found)
            if not why and path.name != f"{key}-{digest(key, path)}.so":
                why = "is not what was written"
            if not why:
                return path
            _log.warning("%s is not loaded, but compiled again: it %s", path, why)
            path.unlink()
    return None


@contextlib.contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold a lock that one process and thread at a time can have, in a file that is then deleted.

    Raises:
        TimeoutError: if another process holds it for so many seconds.
    """
    until = time.monotonic() + seconds
    while True:
        make_private(path.parent)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while not _lock(lock):
                if time.monotonic() > until:
                    raise TimeoutError(
                        f"another process compiles it for more than {seconds:g} s ({path})"
                    )
                time.sleep(0.05)
            if _same(lock, path):
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return
        finally:
            os.close(lock)


def _same(file: int, path: Path) -> bool:
    """Tell whether a path still names an open file, which the last process to lock it deletes."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _lock(file: int) -> bool:
    """Try to lock a file, and tell whether it is locked now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
