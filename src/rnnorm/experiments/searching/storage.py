"""Where a study is kept that several processes work on."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
from optuna.exceptions import OptunaError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from rnnorm.experiments.files import check_size, file_exists, refuse_special

_JOURNAL = "journal:"


def is_storage(name: str) -> bool:
    """Whether something is the URL of a storage, and no folder."""
    return name.startswith(_JOURNAL) or "://" in name


def without_password(url: str) -> str:
    """The URL without its password.

    Raises:
        ValueError: if it is no URL of a storage.
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
    """Name the file in whatever optuna, its database or a number in it raises."""
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
        raise ValueError(f"{path} is no study: {str(error).partition(chr(10))[0]}") from None


@contextmanager
def naming_storage(url: str | None) -> Iterator[None]:
    """Name the storage that fails in the middle of the work.

    Args:
        url: of the storage, None for that of a folder.

    Raises:
        RuntimeError: if it does; nothing but what was being written is lost.
    """
    try:
        yield
    except (OptunaError, SQLAlchemyError) as error:
        name = "the study" if url is None else without_password(url)
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise RuntimeError(f"{name} failed: {reason}. The same command goes on") from error


@contextmanager
def open_storage(url: str, new: bool = True) -> Iterator[BaseStorage]:
    """Connect to a storage.

    Args:
        url: ``journal:FILE``, or one of SQLAlchemy's.
        new: make what is not there yet; otherwise nothing is written.

    Raises:
        FileNotFoundError: if it is not there.
        ValueError: if it is no URL, its driver is not installed, nothing answers there, or the file
            is no journal.
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
    storage = _connected(driver.render_as_string(hide_password=False), name, new)
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
    """Where a storage that is a file is.

    It is absolute, since optuna's lock is a link to it: a relative one, of a process that has died,
    would lead nowhere, and be waited for for ever.
    """
    if url.startswith(_JOURNAL):
        return Path(url.removeprefix(_JOURNAL)).absolute()
    made = make_url(url)
    database = made.database or ":memory:"
    if made.get_backend_name() != "sqlite" or database.startswith((":memory:", "file:")):
        return None
    # SQLAlchemy leaves out what stands behind a ? and is no option
    if "?" in url and not made.query:
        raise ValueError(
            f"storage must be a URL, in which ? begins options, got {url!r}: name another file, or "
            "it by journal:FILE, which is no URL"
        )
    return Path(database)


def _connected(url: str, name: str, new: bool, tries: int = 5) -> RDBStorage:
    try:
        # optuna fills the braces of a template in
        template = url.replace("{", "{{").replace("}", "}}")
        return RDBStorage(template, skip_table_creation=not new)
    except ImportError as error:
        raise ValueError(f"{name} needs a driver that is not installed: {error}") from error
    except (OptunaError, SQLAlchemyError, RuntimeError) as error:
        if tries == 1:
            # the database's own words, where there are any
            reason = str(error.__cause__ or error).partition("\n")[0]
            raise ValueError(f"{name} cannot be opened: {reason}") from error
    # two processes that make the tables at once get in each other's way
    time.sleep(1)
    return _connected(url, name, new, tries - 1)


# as optuna begins each
_START = b'{"op_code":'


def check_journal(path: Path) -> tuple[int, int] | None:
    """Refuse what is no journal, before optuna appends to it.

    Returns:
        Number and first byte of the last line if it is unfinished; optuna skips such a line.

    Raises:
        ValueError: if a line is none of a journal.
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
                f"line {number}, from byte {begins} on, is no JSON object with op_code: "
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
    """Cut off a last line that a process was killed in, lest the next one be appended to it.

    Raises:
        ValueError: if a line is none of a journal.
    """
    if check_journal(path) is None:
        return
    # whoever writes holds the lock: what is unfinished now is left by one that has died
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
