"""The page of results: what was measured, beside the papers' numbers, out of small files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rnnorm.experiments.measuring.outcome import Outcome, score_in
from rnnorm.experiments.reporting.results_files import Recorded, read_recorded, read_steps
from rnnorm.experiments.reporting.results_picture import scores_of
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
    text, tables = read_recorded(folder)
    steps = read_steps(folder)
    parts = ["# Results", text]
    for table in tables:
        parts += _section(table, steps)
    return "\n\n".join(parts) + "\n"


def _section(table: Recorded, steps: dict[str, dict[str, str]]) -> list[str]:
    outcomes = [outcome for outcome, _ in table.runs]
    parts = [f"## {table.title}"]
    if outcomes:
        metrics = dict.fromkeys(outcome.metric for outcome in outcomes)
        parts.append(f"{'; '.join(metrics).capitalize()}.")
        parts.append(_table(_HEAD, [_row(o, steps.get(o.recipe)) for o in outcomes]))
    for found in table.searches:
        parts += _search(found)
    if scores_of(table):
        parts.append(f"![The scores of this table](results/{table.picture})")
    ran = {outcome.recipe for outcome in outcomes} | {found["recipe"] for found in table.searches}
    if missing := [name for name in table.recipes if name not in ran]:
        numbers = [_name_and_number(name) for name in missing]
        parts.append(f"Not run yet: {', '.join(numbers)}.")
    if lengths := _lengths(outcomes):
        parts += ["Against the length of the test windows:", lengths]
    for outcome, sentences in table.runs:
        if sentences:
            lines = [f"- {' '.join(line.split())}" for line in sentences]
            parts.append("\n".join([f"Written by `{outcome.recipe}`:", "", *lines]))
    if table.text:
        parts.append(table.text)
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
