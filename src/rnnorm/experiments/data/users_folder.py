"""The folder or file of data that a user names, for what is not downloaded."""

from __future__ import annotations

from pathlib import Path


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
