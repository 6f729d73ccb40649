"""The page of results: what was measured, beside the papers' numbers, out of small files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rnnorm.experiments.measuring.outcome import Outcome, score_in
from rnnorm.experiments.reporting.results_files import Recorded, read_recorded
from rnnorm.experiments.reporting.results_picture import curves_of, scores_of
from rnnorm.experiments.reporting.step_times import RIVALS, Steps, StepTime, read_steps, step_of
from rnnorm.experiments.training.recipe import read_recipe

_HEAD = (
    "recipe",
    "paper",
    "ours, population statistics",
    "ours, batch statistics",
    "sampling error",
    "test loss, nats",
    "best validation",
    "epochs",
    "steps",
    "seconds a step",
    *(f"÷ {rival}" for rival in RIVALS),
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


def _section(table: Recorded, steps: Steps) -> list[str]:
    outcomes = [run.outcome for run in table.runs]
    models = _models(outcomes)
    parts = [f"## {table.title}"]
    if outcomes:
        metrics = dict.fromkeys(outcome.metric for outcome in outcomes)
        several = any(len(seeds) > 1 for seeds in models)
        said = " Of several seeds, their mean and standard deviation." if several else ""
        told = "; ".join(metrics)
        parts.append(f"{told[:1].upper()}{told[1:]}.{said}")
        parts.append(_table(_HEAD, [_row(seeds, steps, table.scale) for seeds in models]))
    for found in table.searches:
        parts += _search(found)
    if scores_of(table):
        parts.append(f"![The scores of this table](results/{table.picture})")
    if curves_of(table, steps):
        parts.append(f"![Validation during training](results/{table.curves_picture})")
    ran = {outcome.recipe for outcome in outcomes} | {found["recipe"] for found in table.searches}
    if missing := [name for name in table.recipes if name not in ran]:
        numbers = [_name_and_number(name) for name in missing]
        parts.append(f"Not run yet: {', '.join(numbers)}.")
    if lengths := _lengths(outcomes):
        parts += ["Against the length of the test windows:", lengths]
    for run in table.runs:
        if run.sentences:
            lines = [f"- {' '.join(line.split())}" for line in run.sentences]
            parts.append("\n".join([f"Written by `{run.outcome.label}`:", "", *lines]))
    parts += _places(models)
    if table.text:
        parts.append(table.text)
    return parts


def _models(outcomes: Iterable[Outcome]) -> list[list[Outcome]]:
    """The outcomes that differ in the seed alone, together."""
    models: dict[tuple[Any, ...], list[Outcome]] = {}
    for o in outcomes:
        models.setdefault((o.label, o.scale, o.epochs, o.minutes), []).append(o)
    return list(models.values())


def _row(seeds: Sequence[Outcome], steps: Steps, scale: str | None) -> list[str]:
    one = seeds[0]
    # a table of small scales alone says so in its text
    how = [f"small: {one.small}"] if one.small and scale is None else []
    how += [f"{len(seeds)} seeds"] if len(seeds) > 1 else []
    told = f"`{one.label}`" + (f" ({'; '.join(how)})" if how else "")
    row = [told, "none" if one.number is None else f"{one.number}"]
    row += [_spread(o.ours("population") for o in seeds), _spread(o.ours("batch") for o in seeds)]
    errors = [o.sampling_error for o in seeds if o.sampling_error is not None]
    row.append(f"{fmean(errors):.2f}" if errors else "–")
    row.append(_spread(o.tested("population").get("test/loss") for o in seeds))
    best = [o for o in seeds if o.best is not None]
    epochs = ", ".join(str(o.best_epoch) for o in best)
    at = f" (epoch{'s' if len(best) > 1 else ''} {epochs})" if best else ""
    row.append(_spread(o.in_papers_unit(o.best) for o in best) + at)
    row.append(f"{one.epochs}" + (f" ({one.minutes:g} minutes)" if one.minutes else ""))
    mean = round(fmean(o.steps for o in seeds))
    row.append(str(mean))
    seconds, ratios = step_of(one, steps) or StepTime(None, {})
    row.append("–" if seconds is None else f"{seconds:.3f}")
    row += [f"{ratios[rival]:.2f}" if rival in ratios else "–" for rival in RIVALS]
    return [*row, "–" if seconds is None else f"{seconds * mean:.0f}"]


def _places(models: Iterable[Sequence[Outcome]]) -> list[str]:
    """Where the runs that say so were trained."""
    lines = []
    for seeds in models:
        places = list(dict.fromkeys(_place(place) for o in seeds for place in o.places))
        known = sorted({o.seed for o in seeds if o.seed is not None})
        if places and known:
            which = f"seed{'s' if len(known) > 1 else ''} {', '.join(map(str, known))}"
            lines.append(f"- `{seeds[0].label}`, {which}: {'; '.join(places)}")
    return ["\n".join(["Trained on:", "", *lines])] if lines else []


def _place(place: dict[str, str]) -> str:
    threads = place["threads"]
    told = [place["processor"], f"{threads} thread{'' if threads == '1' else 's'}"]
    told.append(f"kernels {place['kernels']}")
    return ", ".join([*told, *([f"commit {place['commit']}"] if place["commit"] else [])])


def _search(found: dict[str, Any]) -> list[str]:
    changes = [*([f"small: {found['small']}"] if found["small"] else []), *found["overrides"]]
    how = f" ({'; '.join(changes)})" if changes else ""
    head, *rows = found["rows"]
    said = f"Random search with `{found['recipe']}`{how}. {found['failures']}."
    return [said, _table(head, rows)]


def _lengths(outcomes: Sequence[Outcome]) -> str | None:
    """Scores against the length of the test windows, a line for each kind of statistics."""
    lines: dict[tuple[str, str], dict[int, list[float | None]]] = {}
    for outcome in outcomes:
        for statistics in ("population", "batch"):
            for length in dict.fromkeys(test.length for test in outcome.tests if test.length):
                if found := outcome.tested(statistics, length):
                    scores = lines.setdefault((outcome.label, statistics), {})
                    score = outcome.in_papers_unit(score_in(found))
                    scores.setdefault(length, []).append(score)
    if not lines:
        return None
    columns = sorted({length for scores in lines.values() for length in scores})
    rows = [
        [
            f"`{recipe}`",
            statistics if (recipe, "batch") in lines else "–",
            *(_spread(scores.get(length, ())) for length in columns),
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


def _spread(values: Iterable[float | None]) -> str:
    """Mean and standard deviation of the seeds that have a value."""
    found = [value for value in values if value is not None]
    if len(found) < 2:
        return _number(found[0] if found else None)
    mean = fmean(found)
    return f"{_number(mean)} ± {stdev(found):.{2 if mean >= 10 else 3}f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
