"""The page of results: what was measured, beside the papers' numbers, out of small files.

A folder holds one JSON for each recorded run or search, CSV files of ``rnnorm bench RECIPE ...``,
and ``tables.yaml``, which says which recipes share a table and what there is to say about it.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from rnnorm.experiments.measuring.measurement import Measurement
from rnnorm.experiments.measuring.outcome import Outcome, score_in
from rnnorm.experiments.training.recipe import read_recipe

_HEAD = (
    "recipe",
    "paper",
    "ours, population statistics",
    "ours, batch statistics",
    "test loss, nats",
    "best validation",
    "epochs",
    "steps",
    "seconds a step",
    "ratio",
    "seconds",
)


def page_of(folder: Path) -> str:
    """The page of a folder's files, as Markdown.

    Raises:
        FileNotFoundError: ``tables.yaml`` is missing.
        ValueError: a file is broken, or a recorded run is in no table.
    """
    tables = yaml.safe_load((folder / "tables.yaml").read_text(encoding="utf-8"))
    files = sorted(folder.glob("*.json"))
    recorded = {path: _read(path) for path in files if not path.name.startswith("search-")}
    searches = {path: _read_search(path) for path in files if path not in recorded}
    steps = {row["recipe"]: row for path in sorted(folder.rglob("*.csv")) for row in _rows(path)}
    placed = [name for table in tables["tables"] for name in table["recipes"]]
    named = {path: outcome.recipe for path, (outcome, _) in recorded.items()}
    named |= {path: found["recipe"] for path, found in searches.items()}
    for path, name in named.items():
        if name not in placed:
            raise ValueError(f"{folder / 'tables.yaml'} has no table for {path.name}")
    parts = ["# Results", tables["text"].strip()]
    for table in tables["tables"]:
        places = [path for recipe in table["recipes"] for path in files if named[path] == recipe]
        parts += _section(
            table,
            [recorded[path] for path in places if path in recorded],
            [searches[path] for path in places if path in searches],
            steps,
        )
    return "\n\n".join(parts) + "\n"


def _section(
    table: dict[str, Any],
    own: Sequence[tuple[Outcome, list[str]]],
    searches: Sequence[dict[str, Any]],
    steps: dict[str, dict[str, str]],
) -> list[str]:
    outcomes = [outcome for outcome, _ in own]
    parts = [f"## {table['title']}"]
    if outcomes:
        metrics = dict.fromkeys(outcome.metric for outcome in outcomes)
        parts.append(f"{'; '.join(metrics).capitalize()}.")
        parts.append(_table(_HEAD, [_row(o, steps.get(o.recipe)) for o in outcomes]))
    for found in searches:
        parts += _search(found)
    ran = {outcome.recipe for outcome in outcomes} | {found["recipe"] for found in searches}
    if missing := [name for name in table["recipes"] if name not in ran]:
        numbers = [_name_and_number(name) for name in missing]
        parts.append(f"Not run yet: {', '.join(numbers)}.")
    if lengths := _lengths(outcomes):
        parts += ["Against the length of the test windows:", lengths]
    for outcome, sentences in own:
        if sentences:
            lines = [f"- {' '.join(line.split())}" for line in sentences]
            parts.append("\n".join([f"Written by `{outcome.recipe}`:", "", *lines]))
    if table.get("text"):
        parts.append(table["text"].strip())
    return parts


def _row(outcome: Outcome, step: dict[str, str] | None) -> list[str]:
    small = f" (small: {outcome.small})" if outcome.small else ""
    row = [f"`{outcome.recipe}`{small}", "none" if outcome.number is None else f"{outcome.number}"]
    row += [_number(outcome.ours("population")), _number(outcome.ours("batch"))]
    row.append(_number(outcome.tested("population").get("test/loss")))
    best = outcome.in_papers_unit(outcome.best)
    row.append(_number(best) + (f" (epoch {outcome.best_epoch})" if best is not None else ""))
    row += [str(outcome.epochs), str(outcome.steps)]
    if step is None:
        return [*row, "–", "–", "–"]
    seconds = float(step["seconds"])
    return [*row, f"{seconds:.3f}", f"{float(step['ratio']):.2f}", f"{seconds * outcome.steps:.0f}"]


def _search(found: dict[str, Any]) -> list[str]:
    changes = [*([f"small: {found['small']}"] if found["small"] else []), *found["overrides"]]
    how = f" ({'; '.join(changes)})" if changes else ""
    head, *rows = found["rows"]
    said = f"Random search with `{found['recipe']}`{how}. {found['failures']}."
    return [said, _table(head, rows)]


def _lengths(outcomes: Sequence[Outcome]) -> str | None:
    """Scores against the length of the test windows, a line for each kind of statistics."""
    of_windows = {
        (outcome.recipe, statistics): {
            test.length: outcome.in_papers_unit(score_in(found))
            for test in outcome.tests
            if test.length and (found := outcome.tested(statistics, test.length))
        }
        for outcome in outcomes
        for statistics in ("population", "batch")
    }
    lines = {key: scores for key, scores in of_windows.items() if scores}
    if not lines:
        return None
    columns = sorted({length for scores in lines.values() for length in scores})
    rows = [
        [
            f"`{recipe}`",
            statistics if (recipe, "batch") in lines else "–",
            *(_number(scores.get(length)) for length in columns),
        ]
        for (recipe, statistics), scores in lines.items()
    ]
    return _table(("recipe", "statistics", *map(str, columns)), rows)


def _name_and_number(name: str) -> str:
    number = read_recipe(name).about.get("number")
    return f"`{name}`" + (f" ({number} in the paper)" if number is not None else "")


def _number(value: float | None) -> str:
    """Two decimals, three where the number is small."""
    return "–" if value is None else f"{value:.2f}" if value >= 10 else f"{value:.3f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _read(path: Path) -> tuple[Outcome, list[str]]:
    try:
        given = json.loads(path.read_bytes())
        tests = [Measurement(**t | {"overrides": tuple(t["overrides"])}) for t in given["tests"]]
        sentences = given.pop("sentences")
        return Outcome(**given | {"tests": tuple(tests)}), sentences
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is no recorded run: {error}") from None


def _read_search(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        _search(found)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is no recorded search: {error}") from None
    return found


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows or not {"recipe", "seconds", "ratio"} <= rows[0].keys():
        raise ValueError(f"{path} is none of rnnorm bench RECIPE: it lacks recipe, seconds, ratio")
    return rows
