"""The page of results: measured scores beside the papers' numbers, out of small files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rnnorm.experiments.recipe.recipe import read_recipe
from rnnorm.experiments.trained.curve import trained_at
from rnnorm.experiments.trained.outcome import Outcome, score_in
from rnnorm.experiments.training.score import with_deviation
from tools.results.picture import curves_of, scores_of
from tools.results.recorded import Table, models_of, read_recorded
from tools.results.step_times import RIVALS, Steps, read_steps, step_of

#: shown in place of a missing value
_ABSENT = "–"


def page_of(folder: Path) -> str:
    """Format the page of a folder's files as Markdown.

    Raises:
        FileNotFoundError: if ``tables.yaml`` is missing.
        ValueError: if a file is broken, or a recorded run is in no table.
    """
    text, tables = read_recorded(folder)
    steps = read_steps(folder)
    parts = ["# Results", text]
    for table in tables:
        parts += _section(table, steps)
    return "\n\n".join(parts) + "\n"


def _section(table: Table, steps: Steps) -> list[str]:
    """Format a table: its scores first, then the comment, then how they were obtained."""
    outcomes = [run.outcome for run in table.runs]
    named = models_of(outcomes)
    models = list(named.values())
    trained = {id(r.outcome): trained_at(r.curve, r.outcome.best_step) for r in table.runs}
    parts = [f"## {table.title}"]
    if outcomes:
        metrics = dict.fromkeys(outcome.metric for outcome in outcomes)
        several = any(len(seeds) > 1 for seeds in models)
        note = " Of several seeds, their mean and standard deviation." if several else ""
        listed = "; ".join(metrics)
        parts.append(f"{listed[:1].upper()}{listed[1:]}.{note}")
        budgets = dict.fromkeys(seeds[0].epochs for seeds in models)
        for epochs in budgets:
            if len(budgets) > 1:
                parts.append(f"After {epochs} epoch{'' if epochs == 1 else 's'}:")
            rows = [s for s in models if s[0].epochs == epochs]
            parts.append(_table([_scores(seeds, table.scale, trained) for seeds in rows]))
    if lengths := _lengths(named):
        parts += ["Against the length of the test windows:", lengths]
    if scores_of(table):
        parts.append(f"![The scores of this table](results/{table.picture})")
    if curves_of(table, steps):
        parts.append(f"![Validation during training](results/{table.curves_picture})")
    ran = {outcome.recipe for outcome in outcomes} | {found["recipe"] for found in table.searches}
    if missing := [name for name in table.recipes if name not in ran]:
        numbers = [_name_and_number(name, table.scale) for name in missing]
        parts.append(f"Not run yet: {', '.join(numbers)}.")
    if table.text:
        parts.append(table.text)
    if times := [row for seeds in models if (row := _times(seeds, steps, table.scale))]:
        timed = (step_of(seeds[0], steps) for seeds in models)
        bases = " and ".join(dict.fromkeys(f"`{found.base}`" for found in timed if found))
        parts += [f"Time of a training step, and its ratio to that of {bases}:", _table(times)]
    for found in table.searches:
        parts += _search(found)
    for run in table.runs:
        if run.sentences:
            lines = [f"- {' '.join(line.split())}" for line in run.sentences]
            parts.append("\n".join([f"Written by `{run.outcome.label}`:", "", *lines]))
    parts += _places(models)
    return parts


def _recipe(seeds: Sequence[Outcome], scale: str | None) -> str:
    one = seeds[0]
    # a table with small scales only says so in its text
    how = [f"small: {one.small}"] if one.small and scale is None else []
    how += [f"{len(seeds)} seeds"] if len(seeds) > 1 else []
    return f"`{one.label}`" + (f" ({'; '.join(how)})" if how else "")


def _scores(
    seeds: Sequence[Outcome], scale: str | None, trained: Mapping[int, float | None]
) -> dict[str, str]:
    one = seeds[0]
    best = [o for o in seeds if o.best is not None]
    at = f" ({', '.join(str(o.best_epoch) for o in best)})" if best else ""
    errors = [o.sampling_error for o in seeds if o.sampling_error is not None]
    return {
        "recipe": _recipe(seeds, scale),
        "epochs": f"{one.epochs}" + (f" ({one.minutes:g} minutes)" if one.minutes else ""),
        "paper": _ABSENT if one.papers_number is None else f"{one.papers_number}",
        "ours, population statistics": _spread(o.ours("population") for o in seeds),
        "sampling error": f"{fmean(errors):.2f}" if errors else _ABSENT,
        "ours, batch statistics": _spread(o.ours("batch") for o in seeds),
        "test loss, nats": _spread(o.tested("population").get("test/loss") for o in seeds),
        "best validation (epoch)": _spread(o.in_papers_unit(o.best) for o in best) + at,
        "in training, same epoch": _spread(trained[id(o)] for o in seeds),
        "steps": f"{_steps(seeds)}",
    }


def _times(seeds: Sequence[Outcome], steps: Steps, scale: str | None) -> dict[str, str] | None:
    if (found := step_of(seeds[0], steps)) is None:
        return None
    seconds, ratios, _ = found
    return {
        "recipe": _recipe(seeds, scale),
        "seconds a step": _ABSENT if seconds is None else f"{seconds:.3f}",
        **{
            f"÷ {rival}": f"{ratios[rival]:.2f}" if rival in ratios else _ABSENT for rival in RIVALS
        },
        "seconds of all steps": _ABSENT if seconds is None else f"{seconds * _steps(seeds):.0f}",
    }


def _steps(seeds: Sequence[Outcome]) -> int:
    return round(fmean(o.steps for o in seeds))


def _places(models: Iterable[Sequence[Outcome]]) -> list[str]:
    """List where runs were trained, if they tell."""
    lines = []
    for seeds in models:
        commits: dict[str, list[str]] = {}
        for place in (place for o in seeds for place in o.places):
            its = commits.setdefault(_machine(place), [])
            if place["commit"] not in ["", *its]:
                its.append(place["commit"])
        places = [_with_commits(*each) for each in commits.items()]
        known = sorted({o.seed for o in seeds if o.seed is not None})
        if places and known:
            which = f"seed{'s' if len(known) > 1 else ''} {', '.join(map(str, known))}"
            lines.append(f"- `{seeds[0].label}`, {which}: {'; '.join(places)}")
    return ["\n".join(["Trained on:", "", *lines])] if lines else []


def _machine(place: dict[str, str]) -> str:
    threads = place["threads"]
    parts = [place["processor"], f"{threads} thread{'' if threads == '1' else 's'}"]
    return ", ".join([*parts, f"kernels {place['kernels']}"])


def _with_commits(machine: str, commits: Sequence[str]) -> str:
    word = "commit" if len(commits) == 1 else "commits"
    return ", ".join([machine, *([f"{word} {', '.join(commits)}"] if commits else [])])


def _search(found: dict[str, Any]) -> list[str]:
    changes = [*([f"small: {found['small']}"] if found["small"] else []), *found["overrides"]]
    how = f" ({'; '.join(changes)})" if changes else ""
    head, *rows = found["rows"]
    summary = f"Random search with `{found['recipe']}`{how}. {found['failures']}."
    return [summary, _markdown(head, rows)]


def _lengths(named: Mapping[str, Sequence[Outcome]]) -> str | None:
    """Tabulate scores against the length of the test windows, a row for each kind of statistics."""
    lines: dict[tuple[str, str], dict[int, list[float | None]]] = {}
    for name, outcome in ((name, o) for name, seeds in named.items() for o in seeds):
        for statistics in ("population", "batch"):
            for length in dict.fromkeys(test.length for test in outcome.tests if test.length):
                if found := outcome.tested(statistics, length):
                    scores = lines.setdefault((name, statistics), {})
                    score = outcome.in_papers_unit(score_in(found))
                    scores.setdefault(length, []).append(score)
    if not lines:
        return None
    columns = sorted({length for scores in lines.values() for length in scores})
    rows = [
        [
            f"`{name}`",
            statistics if (name, "batch") in lines else _ABSENT,
            *(_spread(scores.get(length, ())) for length in columns),
        ]
        for (name, statistics), scores in lines.items()
    ]
    return _markdown(("recipe", "statistics", *map(str, columns)), rows)


def _name_and_number(name: str, scale: str | None) -> str:
    # the paper's number is not of a smaller training
    number = None if scale == "small" else read_recipe(name).about.get("number")
    return f"`{name}`" + (f" ({number} in the paper)" if number is not None else "")


def _spread(values: Iterable[float | None]) -> str:
    """Format mean and deviation of the seeds that have a value; three decimals below 10."""
    found = [value for value in values if value is not None]
    return with_deviation(found, 2 if fmean(found) >= 10 else 3) if found else _ABSENT


def _table(rows: Sequence[dict[str, str]]) -> str:
    """Format a table of the columns that have a value in at least one row."""
    head = [name for name in rows[0] if any(row[name] != _ABSENT for row in rows)]
    return _markdown(head, ([row[name] for name in head] for row in rows))


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [[_cell(text) for text in row] for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    """Escape a text that would end its cell or its line."""
    return " ".join(text.split()).replace("|", r"\|")
