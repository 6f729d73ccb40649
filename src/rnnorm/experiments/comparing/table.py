"""The table of a comparison: score, cost, and time to a given score."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from rnnorm.experiments.console import counted, text_table
from rnnorm.experiments.trained.curve import Curve, best, by_model, mean_curve, reaches
from rnnorm.experiments.training.score import Score, spread


def comparison_table(curves: Sequence[Curve], score: Score, goal: float | None = None) -> str:
    """Format scores, cost of a step, and steps and seconds to reach a score, as aligned text.

    Args:
        curves: curves of all models and seeds, within the same budget.
        score: the metric.
        goal: the score to reach; by default the best of the first model's mean curve.
    """
    models, note = by_model(curves), ""
    # diverged seeds are left out, since the mean would end with the first of them
    whole = {model: [c for c in own if not c.diverged] or own for model, own in models.items()}
    means = {model: mean_curve(own) for model, own in whole.items()}
    first = next(iter(models))
    if goal is None and means[first].values:
        goal = best(means[first], score)
        note = f"; {number(goal, score)} is the best of {first}'s mean curve"
    reached = "" if goal is None else f"reaches {number(goal, score)} after"
    rows: list[tuple[str, ...]] = [
        ("", f"validation {score.label}", "best", "in training", "steps", "ms per step", reached)
    ]
    for model, own in models.items():
        mean = means[model]
        milliseconds = [1000 * c.seconds[-1] / c.steps[-1] for c in own if c.steps]
        rows.append(
            (
                model,
                spread([c.values[-1] for c in whole[model] if c.values], score) + _diverged(own),
                spread([best(c, score) for c in whole[model] if c.values], score),
                # a last validation within an epoch has no training score
                spread(
                    [v for c in whole[model] for v in c.trained[-1:] if not math.isnan(v)], score
                ),
                f"{mean.steps[-1]}" if mean.steps else "",
                f"{statistics.median(milliseconds):.1f}" if milliseconds else "",
                "" if goal is None else _reaches(mean, score, goal),
            )
        )
    seeds = len({c.seed for c in curves})
    if not any(c.trained for c in curves):
        # runs of older versions kept no training scores
        rows = [(*row[:3], *row[4:]) for row in rows]
    each = f"mean and standard deviation of {seeds} seeds" if seeds > 1 else "one seed"
    note = f"{each}, at the last validation and at the best one{note}"
    return "\n".join([*text_table(rows, "   "), "", note])


def number(value: float, score: Score) -> str:
    """Format a score, with a per cent sign if its unit is per cent."""
    return f"{value:.1f} %" if score.label.endswith("%") else f"{value:.4g}"


def _diverged(curves: Sequence[Curve]) -> str:
    count = sum(c.diverged > 0 for c in curves)
    return f" ({count} of {len(curves)} diverged)" if count else ""


def _reaches(mean: Curve, score: Score, goal: float) -> str:
    """Tell after how many seconds and steps the mean curve first reaches the goal."""
    at = reaches(mean, score, goal)
    if at is None:
        return "not reached"
    return f"{mean.seconds[at]:.1f} s, {counted(mean.steps[at], 'step')}"
