"""The storage of a study that several processes share."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import OptunaError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from rnnorm.experiments.files import check_size, file_exists, refuse_special

_JOURNAL = "journal:"
#: options of an SQLite file: no connection outlives its use, not even where optuna refuses the file
SQLITE = {"poolclass": NullPool}


def is_storage(name: str) -> bool:
    """Tell whether a name is the URL of a storage, not a folder."""
    return name.startswith(_JOURNAL) or "://" in name


def without_password(url: str) -> str:
    """Return the URL without its password.

    Raises:
        ValueError: if the text is not the URL of a storage.
    """
    if url.startswith(_JOURNAL):
        return url
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        raise ValueError(
            f"storage must be journal:FILE, or a URL such as sqlite:///FILE or "
            f"postgresql://USER@HOST/DATABASE, got {url!r}"
        ) from None


@contextmanager
def naming_file(path: object) -> Iterator[None]:
    """Turn errors of optuna, its database or broken values into one that names the file.

    Raises:
        OSError: if the disk is full.
        ValueError: if the file is not a study.
    """
    try:
        yield
    except (
        SQLAlchemyError,
        sqlite3.Error,
        OptunaError,
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        if _disk_is_full(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from None
        raise ValueError(f"{path} is not a study: {str(error).partition(chr(10))[0]}") from None


def _disk_is_full(error: BaseException | None) -> bool:
    """Tell whether an error, or one that it wraps, is SQLite's for a full disk."""
    while error is not None and "disk is full" not in str(error):
        error = error.__cause__
    return error is not None


@contextmanager
def naming_storage(url: str | None) -> Iterator[None]:
    """Name the storage in the error if it fails during the work.

    Args:
        url: URL of the storage, None for the study of a folder.

    Raises:
        RuntimeError: if the storage fails; only the current write is lost.
    """
    try:
        yield
    except (OptunaError, SQLAlchemyError) as error:
        name = "the study" if url is None else without_password(url)
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise RuntimeError(f"{name} failed: {reason}. Repeat the command to resume") from error


@contextmanager
def open_storage(url: str, new: bool = True) -> Iterator[BaseStorage]:
    """Connect to a storage.

    Args:
        url: ``journal:FILE``, or one of SQLAlchemy's.
        new: whether to create a missing storage; otherwise nothing is written.

    Raises:
        FileNotFoundError: if the storage's file is missing and ``new`` is False.
        ValueError: if the URL is invalid, its driver is not installed, no server answers, or
            the file is not a journal.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name, path = without_password(url), _file(url)
    if not new and path is not None and not file_exists(path):
        raise FileNotFoundError(f"there is no study in {name}: there is no such file")
    if path is not None and file_exists(path):
        refuse_special(path)
    if path is not None and url.startswith(_JOURNAL):
        path.parent.mkdir(parents=True, exist_ok=True)
        with naming_file(name):
            if path.exists():
                (cut_unfinished if new else check_journal)(path)
            journal = JournalStorage(JournalFileBackend(str(path)))
        yield journal
        return
    driver = make_url(url)
    if driver.drivername == "postgresql":
        driver = driver.set(drivername="postgresql+psycopg")
    options = {} if path is None else SQLITE
    storage = _connected(driver.render_as_string(hide_password=False), name, new, options)
    with closing_connections(storage):
        yield storage


@contextmanager
def closing_connections(storage: RDBStorage) -> Iterator[None]:
    """Close the connections to a database afterwards."""
    try:
        yield
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _file(url: str) -> Path | None:
    """Return the path of a storage that is a file, else None.

    The path of a journal is absolute, since optuna's lock is a link to it: a relative link of a
    dead process would lead nowhere, and others would wait for it forever.
    """
    if url.startswith(_JOURNAL):
        return Path(url.removeprefix(_JOURNAL)).absolute()
    made = make_url(url)
    database = made.database or ":memory:"
    if made.get_backend_name() != "sqlite" or database.startswith((":memory:", "file:")):
        return None
    # SQLAlchemy would drop the text behind a ? that is not an option
    if "?" in url and not made.query:
        raise ValueError(
            f"storage must be a URL, in which ? begins options, got {url!r}: choose the name of a "
            "file without ?, or write journal:FILE"
        )
    return Path(database)


def _connected(
    url: str, name: str, new: bool, options: dict[str, Any], tries: int = 5
) -> RDBStorage:
    """Connect to a database, with several tries."""
    try:
        # optuna would fill in braces of its URL template
        template = url.replace("{", "{{").replace("}", "}}")
        return RDBStorage(template, engine_kwargs=options, skip_table_creation=not new)
    except ImportError as error:
        raise ValueError(f"{name} needs a driver that is not installed: {error}") from error
    except (OptunaError, SQLAlchemyError, RuntimeError) as error:
        if tries == 1:
            # the database's own words, where there are any
            reason = str(error.__cause__ or error).partition("\n")[0]
            raise ValueError(f"{name} cannot be opened: {reason}") from error
    # try again, since two processes may make the tables at the same time
    time.sleep(1)
    return _connected(url, name, new, options, tries - 1)


# optuna begins each line of a journal so
_START = b'{"op_code":'


def check_journal(path: Path) -> tuple[int, int] | None:
    """Refuse a file that is not a journal, before optuna appends to it.

    Returns:
        Number and first byte of the last line if it is unfinished; optuna skips such a line.

    Raises:
        ValueError: if a line is not an entry of a journal.
    """
    begins = 0
    check_size(refuse_special(path), path)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                if line.startswith(_START) or (number > 1 and _START.startswith(line)):
                    return number, begins
            elif _is_entry(line):
                begins += len(line)
                continue
            raise ValueError(
                f"line {number}, from byte {begins} on, is not a JSON object with op_code: "
                f"{line[:40]!r}"
            )
    return None


def _is_entry(line: bytes) -> bool:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(entry, dict) and "op_code" in entry


def cut_unfinished(path: Path) -> None:
    """Cut off an unfinished last line, to which the next entry would be appended.

    Raises:
        ValueError: if a line is not an entry of a journal.
    """
    if check_journal(path) is None:
        return
    # writers hold the lock, so a line that is unfinished under the lock is from a dead process
    lock = JournalFileSymlinkLock(str(path))
    lock.acquire()
    try:
        if (unfinished := check_journal(path)) is not None:
            number, begins = unfinished
            os.truncate(path, begins)
            print(
                f"{path} ended within line {number}, which is cut off: a process was killed while "
                "it wrote, or the disk was full",
                file=sys.stderr,
                flush=True,
            )
    finally:
        lock.release()
