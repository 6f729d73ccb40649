"""Reader of recorded runs and searches, grouped by the tables of the page of results.

A folder holds one JSON for each recorded run or search, and ``tables.yaml``, which lists the
recipes and the comment of each table. A table with a ``change``, such as ``precision=bf16-mixed``,
has the runs of its recipes with that change alone, and no other table has them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from rnnorm.experiments.files import unpack
from rnnorm.experiments.recipe.recipe import read_yaml
from rnnorm.experiments.trained.curve import Curve
from rnnorm.experiments.trained.measurement import Measurement
from rnnorm.experiments.trained.outcome import Outcome

# most bytes of a recorded file
_LIMIT = 1 << 24
#: pattern of the records, without the hidden files that macOS adds
RECORDS = "[!.]*.json"


class RecordedRun(NamedTuple):
    """A run that was recorded.

    Attributes:
        outcome: outcome of the run.
        sentences: sentences that its model wrote.
        score: name of its validation score, empty if its curve was not kept.
        curve: curve of that score, against steps and epochs.
    """

    outcome: Outcome
    sentences: list[str]
    score: str
    curve: Curve


class Table(NamedTuple):
    """A table of the page with its records.

    Attributes:
        title: title of the table.
        recipes: recipes that belong in the table.
        scale: the one scale whose runs belong in the table, ``"paper"`` or ``"small"``; None for
            both.
        text: comment on the table.
        runs: recorded runs.
        searches: recorded searches, in the first table that names their recipe.
    """

    title: str
    recipes: list[str]
    scale: str | None
    text: str
    runs: list[RecordedRun]
    searches: list[dict[str, Any]]

    @property
    def picture(self) -> str:
        """Return the file name of the picture of the scores."""
        return self._name + ".svg"

    @property
    def curves_picture(self) -> str:
        """Return the file name of the picture of the curves."""
        return self._name + "-curves.svg"

    @property
    def _name(self) -> str:
        return re.sub(r"\W+", "-", self.title.lower())


def models_of(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Group outcomes that differ in the seed alone, by a unique label.

    Where the table has several budgets, each label says its own.

    Args:
        outcomes: outcomes of one table.
    """
    models: dict[tuple[Any, ...], list[Outcome]] = {}
    for o in outcomes:
        models.setdefault((o.label, o.scale, o.epochs, o.minutes), []).append(o)
    labels = [label for label, *_ in models]
    several = len({budget for *_, budget, _ in models}) > 1
    named = {}
    for (label, scale, epochs, minutes), seeds in models.items():
        apart = [scale] if labels.count(label) > 1 else []
        if several or apart:
            apart.append(f"{epochs} epoch{'' if epochs == 1 else 's'}")
            apart += [f"{minutes:g} minutes"] if minutes else []
        named[label + (f" ({', '.join(apart)})" if apart else "")] = seeds
    return named


def read_recorded(folder: Path) -> tuple[str, list[Table]]:
    """Read the text before the tables, and the tables.

    Raises:
        FileNotFoundError: if ``tables.yaml`` is missing.
        ValueError: if a file is broken, or a recorded run is in no table.
    """
    text, tables = _read_tables(folder / "tables.yaml")
    files = sorted(folder.glob(RECORDS))
    runs = {path: _read(path) for path in files if not path.name.startswith("search-")}
    searches = {path: _read_search(path) for path in files if path not in runs}
    named = {path: run.outcome.recipe for path, run in runs.items()}
    named |= {path: found["recipe"] for path, found in searches.items()}
    # runs with a change that has a table of its own are in no other
    own = {(recipe, t["change"]) for t in tables if "change" in t for recipe in t["recipes"]}

    def fits(run: RecordedRun, table: dict[str, Any]) -> bool:
        of = run.outcome
        apart = [change for change in of.changes if (of.recipe, change) in own]
        right_scale = table.get("scale") in (None, of.scale)
        return right_scale and apart == ([table["change"]] if "change" in table else [])

    placed: set[Path] = set()
    found = []
    for table in tables:
        # a search is shown in one table only
        new = [path for path in files if path not in placed.intersection(searches)]
        fitting = [path for path in new if path in searches or fits(runs[path], table)]
        places = [path for recipe in table["recipes"] for path in fitting if named[path] == recipe]
        placed.update(places)
        found.append(
            Table(
                table["title"],
                table["recipes"],
                table.get("scale"),
                (table.get("text") or "").strip(),
                [runs[path] for path in places if path in runs],
                [searches[path] for path in places if path in searches],
            )
        )
    for path in files:
        if path not in placed:
            raise ValueError(f"{folder / 'tables.yaml'} has no table for {path.name}")
    return text, found


def _read_tables(path: Path) -> tuple[str, list[dict[str, Any]]]:
    given = read_yaml(path)
    given = given if isinstance(given, dict) else {}
    text, tables = given.get("text"), given.get("tables")
    if not (isinstance(text, str) and isinstance(tables, list)):
        raise ValueError(f"{path} must have a text and a list of tables")
    for table in tables:
        titled = isinstance(table, dict) and isinstance(table.get("title"), str)
        if not (titled and isinstance(table.get("recipes"), list)):
            raise ValueError(
                f"{path}: a table must have a title and a list of recipes, got {table}"
            )
    return text.strip(), tables


def _read(path: Path) -> RecordedRun:
    try:
        given = json.loads(unpack(path, "", _LIMIT))
        tests = [Measurement(**t | {"overrides": tuple(t["overrides"])}) for t in given["tests"]]
        sentences, score = given.pop("sentences"), given.pop("score", "")
        curve = given.pop("curve", {"steps": [], "values": []})
        lists = {name: tuple(given.get(name, ())) for name in ("changes", "overrides", "places")}
        outcome = Outcome(**given | lists | {"tests": tuple(tests)})
        # older records do not tell the epochs of their curves
        whole = {"epochs": [step * outcome.epochs / outcome.steps for step in curve["steps"]]}
        drawn = Curve(outcome.label, outcome.seed or 0, seconds=[], **whole | curve)
        return RecordedRun(outcome, sentences, score, drawn)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is no recorded run: {error}") from None


def _read_search(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(unpack(path, "", _LIMIT))
        if missing := {"recipe", "small", "overrides", "rows", "failures"} - found.keys():
            raise KeyError(*missing)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is no recorded search: {error}") from None
    return found
