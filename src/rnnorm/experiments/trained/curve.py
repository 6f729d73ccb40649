"""Learning curves: validation scores against steps and against seconds, and what they tell."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rnnorm.experiments.training.metrics import DIVERGED, EPOCH, Point, read_metrics
from rnnorm.experiments.training.score import Score

#: fields of a curve that hold one entry per point
POINTS = ("steps", "seconds", "values", "epochs", "trained")


@dataclass(frozen=True)
class Curve:
    """Validation scores of one training, one point after each validation.

    Attributes:
        model: name of the model.
        seed: seed of the training.
        steps: training steps until each point.
        seconds: seconds spent in them.
        values: the score as it is shown, an accuracy or error in per cent.
        epochs: epochs until each point.
        diverged: the epoch, counted from 1, in which something was not finite and the training
            ended; 0 if none.
        trained: the training score of the epoch that ends at each point, NaN where none ends; empty
            if the run kept none.
    """

    model: str
    seed: int
    steps: list[int]
    seconds: list[float]
    values: list[float]
    epochs: list[float] = field(default_factory=list)
    diverged: int = 0
    trained: list[float] = field(default_factory=list)

    def at(self, points: Iterable[int]) -> Curve:
        """Return a copy of the curve with the points at the given indices."""
        chosen = list(points)
        # an older record has no seconds, epochs or training scores
        kept: dict[str, Any] = {
            name: [own[i] for i in chosen] for name in POINTS if (own := getattr(self, name))
        }
        return replace(self, **kept)

    def until(self, points: int) -> Curve:
        """Return a copy of the curve with its first ``points`` points."""
        return self.at(range(min(points, len(self.steps))))


def read_curve(folder: Path, score: Score, model: str, seed: int) -> Curve:
    """Read the validation curve of a run folder.

    Args:
        folder: the run folder.
        score: the metric.
        model: the name that the curve gets.
        seed: the seed of the run.

    Raises:
        ValueError: if ``metrics.csv`` is broken.
    """
    metrics = read_metrics(folder / "metrics.csv")
    points = metrics.get(score.in_validation, [])
    # exact where each epoch is validated at its end
    trained = {point.step: point.value for point in metrics.get(EPOCH + score.name, [])}
    an_epoch = max(((point.step + 1) / (point.epoch + 1) for point in points), default=1.0)
    return Curve(
        model,
        seed,
        steps=[point.step + 1 for point in points],
        seconds=[point.seconds for point in points],
        values=[score.in_unit(point.value) for point in points],
        epochs=[round((point.step + 1) / an_epoch, 6) for point in points],
        diverged=metrics[DIVERGED][0].epoch + 1 if DIVERGED in metrics else 0,
        trained=[score.in_unit(trained.get(point.step, math.nan)) for point in points]
        if trained
        else [],
    )


def best_point(folder: Path, score: Score) -> Point | None:
    """Return the best finite validation point of a run folder, the first one of equal points.

    Raises:
        ValueError: if ``metrics.csv`` is broken.
    """
    points = read_metrics(folder / "metrics.csv").get(score.in_validation, [])
    finite = [point for point in points if math.isfinite(point.value)]
    return max(finite, key=lambda point: score.sign * point.value, default=None)


def trained_at(curve: Curve, step: int | None) -> float | None:
    """Return the training score of the epoch that ended after ``step`` steps, None without one."""
    found = dict(zip(curve.steps, curve.trained, strict=False))
    value = math.nan if step is None else found.get(step, math.nan)
    return None if math.isnan(value) else value


def at_shared_steps(curves: Sequence[Curve]) -> list[Curve]:
    """Return each curve with only the points at steps at which all curves were validated.

    If no curve ends at such a step, as with a budget in minutes, each keeps its last point too.
    """
    shared = set.intersection(*(set(c.steps) for c in curves))
    ended_apart = all(c.steps and c.steps[-1] not in shared for c in curves)
    steps = [shared | ({c.steps[-1]} if ended_apart else set()) for c in curves]
    return [
        c.at(i for i, step in enumerate(c.steps) if step in own)
        for c, own in zip(curves, steps, strict=True)
    ]


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Return the curve of means over the seeds, at the points that all of them share."""
    seeds = at_shared_steps(curves)
    means: dict[str, Any] = {
        # empty where a seed lacks this field
        name: [statistics.fmean(at) for at in zip(*(getattr(c, name) for c in seeds), strict=False)]
        for name in POINTS
    }
    means["steps"] = [round(step) for step in means["steps"]]
    return Curve(curves[0].model, curves[0].seed, **means)


def training_scores_kept(curves: Sequence[Curve]) -> bool:
    """Tell whether there is a model of which all seeds kept their training scores."""
    return any(all(c.trained for c in own) for own in by_model(curves).values())


def best(curve: Curve, score: Score) -> float:
    """Return the best finite value of a curve, or nan if no value is finite."""
    finite = filter(math.isfinite, curve.values)
    return max(finite, key=lambda value: score.sign * value, default=math.nan)


def reaches(curve: Curve, score: Score, goal: float) -> int | None:
    """Return the index of the first point at least as good as ``goal``, or None."""
    return next((i for i, v in enumerate(curve.values) if score.sign * (v - goal) >= 0), None)


def by_model(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """Group curves by model, in the order in which the models first occur."""
    models = dict.fromkeys(c.model for c in curves)
    return {model: [c for c in curves if c.model == model] for model in models}


def as_csv(curves: Sequence[Curve], score: Score) -> str:
    """Format the points of all curves as CSV text, one point per line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    # runs of older versions kept no training scores
    parts = ("validation", "training") if any(c.trained for c in curves) else ("validation",)
    labels = [f"{part} {score.label}" for part in parts]
    writer.writerow(("model", "seed", "step", "seconds", *labels))
    for c in curves:
        trained = c.trained or [math.nan] * len(c.steps)
        for step, seconds, *scores in zip(c.steps, c.seconds, c.values, trained, strict=True):
            shown = [f"{value:.5g}" for value in scores[: len(parts)]]
            writer.writerow((c.model, c.seed, step, f"{seconds:.3f}", *shown))
    return text.getvalue()
