"""The study of a random search, kept in a database that survives a kill."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from rnnorm.experiments.console import text_table
from rnnorm.experiments.files import check_size, file_exists, refuse_special
from rnnorm.experiments.searching.storage import (
    SQLITE,
    closing_connections,
    naming_file,
    open_storage,
    without_password,
)
from rnnorm.experiments.training.score import Metric, Score

FILE = "study.db"
# attribute with the reason why a trial failed
WHY = "failed because"
_NAME = "search"


@dataclass(frozen=True)
class Search:
    """A random search, finished or not.

    Attributes:
        recipe: name of the recipe.
        scale: ``"paper"`` or ``"small"``.
        score: name of the validation score.
        overrides: options of LightningCLI for all trials.
        trials: finished trials, the best first, then those that failed or were pruned.
    """

    recipe: str
    scale: str
    score: str
    overrides: tuple[str, ...]
    trials: tuple[FrozenTrial, ...]

    @property
    def failed(self) -> tuple[FrozenTrial, ...]:
        """Return the trials that diverged or had no finite score."""
        return tuple(t for t in self.trials if t.state == TrialState.FAIL)

    def rows(self) -> list[list[str]]:
        """Return a heading, and a row for each trial, the best first."""
        options = list(self.trials[0].params) if self.trials else []
        names = [option.rsplit(".", 1)[-1] for option in options]
        score = Metric(self.score)
        rows = [["trial", f"validation {score.label}", *names]]
        for trial in self.trials:
            if trial.state == TrialState.COMPLETE and trial.value is not None:
                value = f"{score.in_unit(trial.value):.4f}"
            else:
                value = "pruned" if trial.state == TrialState.PRUNED else "failed"
            given = [_shown(trial.params[option]) for option in options]
            rows.append([str(trial.number), value, *given])
        return rows

    def failures(self) -> str:
        """Tell how many trials failed, and why."""
        why = [f"; trial {t.number}: {t.user_attrs.get(WHY, 'unknown')}" for t in self.failed]
        return f"{len(self.failed)} of {len(self.trials)} trials failed{''.join(why)}"

    def table(self) -> str:
        """Format all trials and the failures as a text."""
        return "\n".join([*text_table(self.rows()), self.failures()])


def _shown(drawn: Any) -> str:
    return f"{drawn:.4g}" if isinstance(drawn, float) else str(drawn)


@contextmanager
def open_study(
    out: Path, about: Mapping[str, Any], score: Score, url: str | None = None
) -> Iterator[optuna.Study]:
    """Open the study in a folder or a storage, or make a new one.

    Args:
        out: the folder.
        about: settings of the search, which an existing study must share.
        score: score of the trials.
        url: storage that several processes share, see
            :func:`rnnorm.experiments.searching.storage.open_storage`; the study has the recipe's
            name there.

    Raises:
        ValueError: if the study is of another search, or the file is not a study.
    """
    out.mkdir(parents=True, exist_ok=True)
    where = out if url is None else without_password(url)
    with _storage(out / FILE) if url is None else open_storage(url) as storage:
        with naming_file(out / FILE if url is None else where):
            study = optuna.create_study(
                storage=storage,
                study_name=_NAME if url is None else study_name(about["recipe"], about["scale"]),
                direction="maximize" if score.mode == "max" else "minimize",
                load_if_exists=True,
            )
            known = study.user_attrs
        for name, value in about.items():
            if known.get(name, value) != value:
                raise ValueError(
                    f"the study in {where} has {name} {known[name]!r}, not {value!r}: name another "
                    f"{'folder' if url is None else 'storage'}"
                )
            study.set_user_attr(name, value)
        yield study


@contextmanager
def _storage(path: Path) -> Iterator[RDBStorage]:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with naming_file(path):
        _check_database(path)
        # connect by a function, since ?, % and {} have a meaning within a URL
        connect = partial(sqlite3.connect, path.resolve(), check_same_thread=False)
        storage = RDBStorage(f"sqlite:///{FILE}", engine_kwargs={"creator": connect, **SQLITE})
    with closing_connections(storage):
        yield storage


def _check_database(path: Path) -> None:
    """Refuse a database that is not a study, before optuna writes its tables into it."""
    # an empty file is from a process that was killed before it wrote
    if not path.exists() or not (size := refuse_special(path)):
        return
    check_size(size, path)
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True)) as database:
        found = set(database.execute("SELECT type, name FROM sqlite_master"))
    # optuna makes no views or triggers; in other files these could run forever
    if ("table", "studies") not in found or {"view", "trigger"} & {kind for kind, _ in found}:
        raise ValueError("it is another database, without a table of studies")


def read_search(folder: str | Path) -> Search:
    """Read the study of a folder.

    Raises:
        FileNotFoundError: if the folder holds no study.
        ValueError: if the file is empty or not a study.
    """
    path = Path(folder) / FILE
    if not file_exists(path):
        raise FileNotFoundError(f"there is no study in {folder}: it lacks {FILE}")
    if not refuse_special(path):
        raise ValueError(f"{path} is empty: it was cut off before it began")
    with _storage(path) as storage, naming_file(path):
        return search_of(optuna.load_study(study_name=_NAME, storage=storage), folder)


def read_searches(url: str) -> list[Search]:
    """Read all studies of a storage.

    Raises:
        FileNotFoundError: if the storage's file is missing.
        ValueError: if the storage cannot be opened, is empty, or holds a study of another program.
    """
    with open_storage(url, new=False) as storage, naming_file(without_password(url)):
        names = optuna.get_all_study_names(storage)
        if not names:
            raise ValueError("it is empty")
        studies = [optuna.load_study(study_name=name, storage=storage) for name in names]
        return [search_of(study, without_password(url)) for study in studies]


def study_name(recipe: str, scale: str) -> str:
    """Return the name of a recipe's study in a storage that may hold several."""
    return recipe if scale == "paper" else f"{recipe}, {scale}"


def search_of(study: optuna.Study, where: object) -> Search:
    """Summarise a study.

    Raises:
        ValueError: if the study was not made by this program.
    """
    finished = [trial for trial in study.get_trials() if trial.state.is_finished()]
    about = study.user_attrs
    sign = -1 if study.direction == StudyDirection.MAXIMIZE else 1

    def rank(trial: FrozenTrial) -> tuple[bool, float]:
        known = trial.state == TrialState.COMPLETE
        return not known, sign * trial.value if known and trial.value is not None else 0.0

    finished.sort(key=rank)
    if missing := {"recipe", "scale", "score", "overrides"} - about.keys():
        raise ValueError(f"the study in {where} does not say {', '.join(sorted(missing))}")
    return Search(
        about["recipe"],
        about["scale"],
        about["score"],
        tuple(about["overrides"]),
        tuple(finished),
    )
