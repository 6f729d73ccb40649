"""Where a study is kept that several processes work on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

_JOURNAL = "journal:"


def is_storage(name: str) -> bool:
    """Whether something is the URL of a storage, and no folder."""
    return name.startswith(_JOURNAL) or "://" in name


def shown(url: str) -> str:
    """The URL without its password.

    Raises:
        ValueError: it is no URL of a storage.
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
def open_storage(url: str) -> Iterator[BaseStorage]:
    """Connect to a storage, new or old.

    Args:
        url: ``journal:FILE``, or one of SQLAlchemy's.

    Raises:
        ValueError: it is no URL, its driver is not installed, or nothing answers there.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name = shown(url)
    if url.startswith(_JOURNAL):
        path = Path(url.removeprefix(_JOURNAL))
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            journal = JournalStorage(JournalFileBackend(str(path)))
        except (KeyError, OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{name} is no study: {error}") from error
        yield journal
        return
    driver = make_url(url)
    if driver.drivername == "postgresql":
        driver = driver.set(drivername="postgresql+psycopg")
    storage = _connected(driver.render_as_string(hide_password=False), name)
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _connected(url: str, name: str, tries: int = 5) -> RDBStorage:
    try:
        return RDBStorage(url)
    except ImportError as error:
        raise ValueError(f"{name} needs a driver that is not installed: {error}") from error
    except (SQLAlchemyError, RuntimeError) as error:
        if tries == 1:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"{name} cannot be opened: {reason}") from error
    # two processes that make the tables at once get in each other's way
    time.sleep(1)
    return _connected(url, name, tries - 1)
