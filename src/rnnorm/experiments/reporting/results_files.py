"""What is recorded of runs, searches and step times, by the tables of the page of results.

A folder holds one JSON for each recorded run or search, CSV files of ``rnnorm bench RECIPE ...``,
and ``tables.yaml``, which says which recipes share a table and what there is to say about it.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from rnnorm.experiments.data.text_file import as_text, unpack
from rnnorm.experiments.measuring.curve import Curve
from rnnorm.experiments.measuring.measurement import Measurement
from rnnorm.experiments.measuring.outcome import Outcome
from rnnorm.experiments.training.yaml_file import read_yaml

#: rows of ``rnnorm bench`` by recipe and scale
Steps = dict[tuple[str, str], dict[str, str]]
# bytes of a recorded file
_LIMIT = 1 << 24


class RecordedRun(NamedTuple):
    """A run that was recorded.

    Attributes:
        outcome: what came out of it.
        sentences: that it wrote.
        score: name of its validation score, empty where its curve was not kept.
        curve: of that score, against steps and epochs.
    """

    outcome: Outcome
    sentences: list[str]
    score: str
    curve: Curve


class Recorded(NamedTuple):
    """A table of the page, and what is in it.

    Attributes:
        title: of the table.
        recipes: that belong in it.
        scale: the one scale whose runs belong in it, ``"paper"`` or ``"small"``; None for both.
        text: what there is to say.
        runs: as they were recorded.
        searches: as they were recorded.
    """

    title: str
    recipes: list[str]
    scale: str | None
    text: str
    runs: list[RecordedRun]
    searches: list[dict[str, Any]]

    @property
    def picture(self) -> str:
        """Name of the file of its scores' picture."""
        return self._name + ".svg"

    @property
    def curves_picture(self) -> str:
        """Name of the file of its curves' picture."""
        return self._name + "-curves.svg"

    @property
    def _name(self) -> str:
        return re.sub(r"\W+", "-", self.title.lower())


def read_recorded(folder: Path) -> tuple[str, list[Recorded]]:
    """The text before the tables, and the tables.

    Raises:
        FileNotFoundError: ``tables.yaml`` is missing.
        ValueError: a file is broken, or a recorded run is in no table.
    """
    tables = read_yaml(folder / "tables.yaml")
    files = sorted(folder.glob("*.json"))
    runs = {path: _read(path) for path in files if not path.name.startswith("search-")}
    searches = {path: _read_search(path) for path in files if path not in runs}
    named = {path: run.outcome.recipe for path, run in runs.items()}
    named |= {path: found["recipe"] for path, found in searches.items()}
    placed: set[Path] = set()
    found = []
    for table in tables["tables"]:
        scale = table.get("scale")
        fitting = [p for p in files if p in searches or scale in (None, runs[p].outcome.scale)]
        places = [path for recipe in table["recipes"] for path in fitting if named[path] == recipe]
        placed.update(places)
        found.append(
            Recorded(
                table["title"],
                table["recipes"],
                scale,
                (table.get("text") or "").strip(),
                [runs[path] for path in places if path in runs],
                [searches[path] for path in places if path in searches],
            )
        )
    for path in files:
        if path not in placed:
            raise ValueError(f"{folder / 'tables.yaml'} has no table for {path.name}")
    return tables["text"].strip(), found


def read_steps(folder: Path) -> Steps:
    """The row of ``rnnorm bench`` of each recipe and scale.

    Raises:
        ValueError: a file is none of ``rnnorm bench``.
    """
    rows = (row for path in sorted(folder.rglob("*.csv")) for row in _rows(path))
    return {(row["recipe"], row["scale"]): row for row in rows}


def step_of(outcome: Outcome, steps: Steps) -> dict[str, str] | None:
    """The row of what an outcome is of; a changed model may take another time."""
    return None if outcome.changes else steps.get((outcome.recipe, outcome.scale))


def _read(path: Path) -> RecordedRun:
    try:
        given = json.loads(unpack(path, "", _LIMIT))
        tests = [Measurement(**t | {"overrides": tuple(t["overrides"])}) for t in given["tests"]]
        sentences, score = given.pop("sentences"), given.pop("score", "")
        curve = given.pop("curve", {"steps": [], "values": []})
        lists = {name: tuple(given.get(name, ())) for name in ("changes", "places")}
        outcome = Outcome(**given | lists | {"tests": tuple(tests)})
        epochs = [step * outcome.epochs / outcome.steps for step in curve["steps"]]
        drawn = Curve(outcome.label, outcome.seed or 0, seconds=[], epochs=epochs, **curve)
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


def _rows(path: Path) -> list[dict[str, str]]:
    rows = list(csv.DictReader(as_text(unpack(path, "", _LIMIT), path).splitlines()))
    needed = ("recipe", "scale", "seconds", "ratio")
    if not rows or not set(needed) <= rows[0].keys():
        raise ValueError(f"{path} is none of rnnorm bench RECIPE: it lacks {', '.join(needed)}")
    return rows
