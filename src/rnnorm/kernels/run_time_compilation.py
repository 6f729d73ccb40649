"""The cache on disk and the errors of kernels that are compiled at run time."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

#: environment variable: the folder that keeps compiled kernels
FOLDER = "RNNORM_CACHE"
#: environment variable: 0 compiles no user's cell
SWITCH = "RNNORM_COMPILE"

# lines of a compiler's log that an error shows
_LINES = 10


def switched_off() -> str:
    """Say why the environment leaves users' cells uncompiled, empty if it does not."""
    return f"{SWITCH}=0 leaves it uncompiled" if os.environ.get(SWITCH) == "0" else ""


def cache_folder(kind: str) -> Path:
    """Return the folder of one kind of compiled kernels, which may be deleted at any time.

    Raises:
        RuntimeError: if no environment variable names the folder and the user has no home.
    """
    if given := os.environ.get(FOLDER):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rnnorm" / kind


def make_private(folder: Path) -> Path:
    """Make a folder for this user alone unless it exists, and return its path."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def write(path: Path, data: bytes) -> None:
    """Write a file of the cache, which other processes may read or write at the same time.

    Raises:
        OSError: if it cannot be written; nothing of it is then left.
    """
    # readable by this user alone
    handle, temporary = tempfile.mkstemp(suffix=".part", dir=make_private(path.parent))
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def first_errors(log: bytes) -> str:
    """Return some lines of a compiler's log, from its first error on."""
    lines = log.rstrip(b"\0").decode(errors="replace").strip().splitlines()
    first = next((k for k, line in enumerate(lines) if "error" in line), 0)
    return "\n".join(lines[first : first + _LINES])
