"""The folder or file of data that a user names, for what is not downloaded, and what is in it."""

from __future__ import annotations

import os
from pathlib import Path, PurePath

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
