"""One process a run folder."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Keep other processes from training in a run folder, until this one leaves it or dies.

    The lock is on ``run.json`` itself and the system's own, which a kill does not leave behind.
    Partial files that a kill has left behind are removed. A file system that has no locks is named
    in a line on stderr.

    Raises:
        BlockingIOError: another process trains there.
    """
    with (folder / "run.json").open("r+b") as file:
        try:
            _lock(file.fileno())
        except OSError as error:
            if error.errno in _TAKEN:
                message = f"another process trains in {folder}: wait for it, or name another folder"
                raise BlockingIOError(errno.EAGAIN, message) from None
            print(
                f"{folder} cannot be locked ({error.strerror}): see to it that nothing else trains "
                "there",
                file=sys.stderr,
                flush=True,
            )
        for written in ("checkpoints/*", "config.yaml.*", "metrics.csv.*"):
            for partial in folder.glob(f"{written}.partial"):
                partial.unlink()
        yield


def _lock(descriptor: int) -> None:
    """Lock an open file; closing it releases the lock."""
    if sys.platform == "win32":
        import msvcrt

        # other processes cannot read what is locked here: a byte behind the end
        os.lseek(descriptor, 1 << 30, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
