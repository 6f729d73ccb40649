"""The pictures of a table of results: scores as marks, and validation curves."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rnnorm.experiments.pictures import (
    draw_curves,
    escape_dollars,
    in_lines,
    looks_of,
    styled_figure,
)
from rnnorm.experiments.trained.curve import Curve
from rnnorm.experiments.training.score import Metric
from tools.results.recorded import Table, models_of
from tools.results.step_times import Steps, step_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# filled marks are measured with the statistics that evaluation uses; a colour is a model's
_MARKS: dict[str, dict[str, Any]] = {
    "the paper's": {"marker": "D", "markerfacecolor": "none"},
    "ours, population statistics": {"marker": "o"},
    "ours, batch statistics": {"marker": "s", "markerfacecolor": "none"},
    "trials": {"marker": "o", "alpha": 0.5},
}
_INK = "#444444"

Scores = Mapping[str, Mapping[str, Sequence[float]]]


def scores_of(table: Table) -> Scores:
    """Collect, for each model that was run, the scores of each kind."""
    scores: dict[str, dict[str, list[float]]] = {}
    named = models_of(run.outcome for run in table.runs)
    for name, outcome in ((name, o) for name, seeds in named.items() for o in seeds):
        values = {
            "the paper's": outcome.papers_number,
            "ours, population statistics": outcome.ours("population"),
            "ours, batch statistics": outcome.ours("batch"),
        }
        kinds = scores.setdefault(name, {})
        for kind, value in values.items():
            # the paper's score counts once, however many seeds were run
            if value is not None and not (kind in kinds and kind == "the paper's"):
                kinds.setdefault(kind, []).append(value)
    scores = {name: kinds for name, kinds in scores.items() if kinds}
    trials: dict[str, list[float]] = {}
    for found in table.searches:
        numbers = (_number(score) for _, score, *_ in found["rows"][1:])
        of_one = trials.setdefault(found["recipe"], [])
        of_one += [number for number in numbers if number is not None]
    for recipe, drawn in trials.items():
        # trials and runs differ in scale and get rows of their own
        scores[f"{recipe}, search" if recipe in scores else recipe] = {"trials": drawn}
    return scores


def draw_scores(table: Table) -> bytes:
    """Draw the scores of a table.

    Returns:
        An SVG, the same for the same scores.
    """
    scores = scores_of(table)
    metrics = [run.outcome.metric for run in table.runs]
    metrics += [found["rows"][0][1] for found in table.searches]
    short = [name.split("/")[-1] for name in scores]
    # a recipe's name keeps its paper if several papers use the name
    names = [s if short.count(s) == 1 else name for s, name in zip(short, scores, strict=True)]
    names = [in_lines(name) for name in names]
    lines = max((name.count("\n") + 1 for name in names), default=1)
    looks = looks_of(scores)
    with _svg(7.5, 1.3 + (0.1 + 0.2 * lines) * len(names)) as (figure, data):
        axes = figure.subplots()
        for row, (name, kinds) in enumerate(scores.items()):
            for kind, values in kinds.items():
                mark = {"linestyle": "", "color": looks[name].colour, **_MARKS[kind]}
                axes.plot(values, [row] * len(values), **mark)
        for kind in dict.fromkeys(kind for kinds in scores.values() for kind in kinds):
            axes.plot([], [], linestyle="", color=_INK, label=kind, **_MARKS[kind])
        axes.set_yticks(range(len(scores)), names)
        axes.set_ylim(len(scores) - 0.4, -0.6)
        axes.set_xlabel(escape_dollars("; ".join(dict.fromkeys(metrics))))
        axes.tick_params(length=0)
        figure.legend(frameon=False, loc="outside upper left", ncols=3)
    return data.getvalue()


def curves_of(table: Table, steps: Steps) -> list[Curve]:
    """Collect the curves with more than one point, with the seconds of ``rnnorm bench``."""
    curves = []
    named = models_of(run.outcome for run in table.runs)
    names = {id(outcome): name for name, seeds in named.items() for outcome in seeds}
    for run in table.runs:
        if len(run.curve.values) > 1:
            step = step_of(run.outcome, steps)
            each = step.seconds if step else None
            seconds = [] if each is None else [each * s for s in run.curve.steps]
            curves.append(replace(run.curve, model=names[id(run.outcome)], seconds=seconds))
    return curves


def draw_validation(table: Table, steps: Steps) -> bytes:
    """Draw the curves of a table against epochs, and against seconds if two or more have them.

    Returns:
        An SVG, the same for the same curves.
    """
    curves = curves_of(table, steps)
    scores = dict.fromkeys(run.score for run in table.runs if run.curve.values)
    label = "; ".join(f"validation {Metric(name).label}" for name in scores)
    timed = len({curve.model for curve in curves if curve.seconds}) > 1
    models = list(dict.fromkeys(curve.model for curve in curves))
    # the colours of the table's other picture, though not all of its models have a curve
    looks = looks_of([*scores_of(table), *models])
    lines = [in_lines(model).count("\n") + 1 for model in models]
    half = -(-len(lines) // 2)
    # the height grows with the legend of two columns below, so that the panels keep theirs
    height = 3.6 + 0.23 * max(sum(lines[:half]), sum(lines[half:]))
    with _svg(10 if timed else 7.5, height) as (figure, data):
        panels = figure.subplots(1, 2 if timed else 1, sharey=True, squeeze=False)[0]
        for axes, against in zip(panels, ("epochs", "seconds"), strict=False):
            draw_curves(axes, curves, against, label if against == "epochs" else "", looks)
        lines = panels[0].get_legend_handles_labels()
        figure.legend(*lines, frameon=False, loc="outside lower left", ncols=2)
    return data.getvalue()


@contextmanager
def _svg(width: float, height: float) -> Iterator[tuple[Figure, io.BytesIO]]:
    """Yield a figure and a buffer, which gets the figure's SVG when the context ends."""
    from matplotlib import rc_context

    data = io.BytesIO()
    with rc_context({"svg.fonttype": "none"}), styled_figure(width, height) as figure:
        yield figure, data
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    # no blanks at the ends of lines, which editors would remove
    data.writelines(line.rstrip() + b"\n" for line in drawn.getvalue().splitlines())


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        # failed trials have no number
        return None
