"""The picture of a table of results: each recipe's scores as marks on a line of its own."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rnnorm.experiments.comparing.picture import styled_figure
from rnnorm.experiments.reporting.results_files import Recorded

# what was measured with the statistics that evaluation uses is filled
_MARKS: dict[str, dict[str, Any]] = {
    "the paper's": {"marker": "D", "markerfacecolor": "none", "color": "#767676"},
    "ours, population statistics": {"marker": "o", "color": "#2467a8"},
    "ours, batch statistics": {"marker": "s", "markerfacecolor": "none", "color": "#c8442c"},
    "trials": {"marker": "o", "color": "#2467a8", "alpha": 0.5},
}

Scores = Mapping[str, Mapping[str, Sequence[float]]]


def scores_of(table: Recorded) -> Scores:
    """For each recipe that was run, the values of each kind."""
    scores: dict[str, dict[str, list[float]]] = {}
    for outcome, _ in table.runs:
        values = {
            "the paper's": outcome.number,
            "ours, population statistics": outcome.ours("population"),
            "ours, batch statistics": outcome.ours("batch"),
        }
        kinds = scores.setdefault(outcome.label, {})
        for kind, value in values.items():
            # the paper's is one, however many seeds we ran
            if value is not None and not (kind in kinds and kind == "the paper's"):
                kinds.setdefault(kind, []).append(value)
    scores = {name: kinds for name, kinds in scores.items() if kinds}
    for found in table.searches:
        trials = (_number(score) for _, score, *_ in found["rows"][1:])
        scores[found["recipe"]] = {"trials": [score for score in trials if score is not None]}
    return scores


def draw_scores(table: Recorded) -> bytes:
    """Draw the scores of a table.

    Returns:
        An SVG, the same for the same scores.
    """
    from matplotlib import rc_context

    scores = scores_of(table)
    metrics = [outcome.metric for outcome, _ in table.runs]
    metrics += [found["rows"][0][1] for found in table.searches]
    with (
        rc_context({"svg.fonttype": "none", "svg.hashsalt": "rnnorm"}),
        styled_figure(7.5, 1.3 + 0.3 * len(scores)) as figure,
    ):
        axes = figure.subplots()
        for row, kinds in enumerate(scores.values()):
            for kind, values in kinds.items():
                axes.plot(values, [row] * len(values), linestyle="", label=kind, **_MARKS[kind])
        short = [name.split("/")[-1] for name in scores]
        # with the paper before it where papers have recipes of one name
        names = [s if short.count(s) == 1 else name for s, name in zip(short, scores, strict=True)]
        axes.set_yticks(range(len(scores)), names)
        axes.set_ylim(len(scores) - 0.4, -0.6)
        axes.set_xlabel("; ".join(dict.fromkeys(metrics)))
        axes.tick_params(length=0)
        handles, labels = axes.get_legend_handles_labels()
        once = dict(zip(labels, handles, strict=True))
        figure.legend(once.values(), once, frameon=False, loc="outside upper left", ncols=3)
        data = io.BytesIO()
        figure.savefig(data, format="svg", metadata={"Date": None})
    # an editor of text would take the blanks at the ends of lines away
    return b"\n".join(line.rstrip() for line in data.getvalue().splitlines()) + b"\n"


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        # a trial that failed
        return None
