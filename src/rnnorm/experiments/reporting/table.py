"""The top of a report: the headline with the winner, and the table of scores and costs."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, isfinite, log10, nan
from statistics import fmean, stdev
from typing import NamedTuple

from rnnorm.experiments.comparing.budget import Budget
from rnnorm.experiments.comparing.entry import Entry, refuse_incomparable
from rnnorm.experiments.console import counted
from rnnorm.experiments.trained.curve import Curve, best, by_model, trained_at
from rnnorm.experiments.trained.measurement import Statistics
from rnnorm.experiments.trained.outcome import Outcome
from rnnorm.experiments.training.score import SAMPLING_ERROR, Score, spread, with_deviation


class Headline(NamedTuple):
    """The first two lines of a page.

    Attributes:
        title: the first line.
        text: the second line, which qualifies the first.
    """

    title: str
    text: str


def headline(entries: Sequence[Entry], curves: Sequence[Curve]) -> Headline:
    """Compare the models at a budget that all have used.

    Args:
        entries: the trainings.
        curves: the curve of each training.
    """
    names, score = list(dict.fromkeys(e.model for e in entries)), entries[0].score
    lost = {m: own for m, own in by_model(curves).items() if any(c.diverged for c in own)}
    if len(names) > 1:
        try:
            refuse_incomparable(entries, Budget())
        except ValueError as error:
            return Headline(", ".join(names), f"No winner is named: {error}.")
        curves = [c for c in Budget().cut(curves) if c.model not in lost]
        names = [name for name in names if name not in lost] or names
        if not curves:
            return Headline(", ".join(names), "No winner is named: all diverged.")
    if not all(c.values for c in curves):
        notes = ["There is no validation that all have.", *map(_diverged, lost.values())]
        return Headline(", ".join(names), " ".join(notes))
    found = {model: [best(c, score) for c in own] for model, own in by_model(curves).items()}
    if not all(isfinite(value) for values in found.values() for value in values):
        return Headline(", ".join(names), "No winner is named: a score is not finite.")
    ranked = sorted(names, key=lambda name: -score.sign * fmean(found[name]))
    name, _, unit = score.label.partition(", ")
    # a no-break space keeps a number and its unit on one line
    scores = [f"{spread(found[model], score)}\u00a0{unit}".rstrip() for model in ranked]
    seeds = len({e.seed for e in entries})
    notes = [f"Mean and standard deviation of {seeds} seeds."] if seeds > 1 else []
    notes += [_diverged(own) for own in lost.values()]
    steps = counted(max(c.steps[-1] for c in curves), "training step")
    if len(names) == 1:
        return Headline(
            f"{names[0]}: validation {name} {scores[0]}",
            " ".join([f"The best within {steps}.", *notes]),
        )
    ranking = ", ".join(f"{m} {s}" for m, s in zip(ranked, scores, strict=True))
    first, second = (found[model] for model in ranked[:2])
    if len(first) > 1 and min(score.sign * v for v in first) <= max(score.sign * v for v in second):
        notes.insert(1, f"Those of {ranked[0]} and {ranked[1]} overlap.")
    return Headline(
        _won(ranked[0], ranked[1], abs(fmean(first) - fmean(second)), score),
        " ".join([f"Best validation {name} within {steps}: {ranking}.", *notes]),
    )


def _diverged(curves: Sequence[Curve]) -> str:
    """Tell which of a model's trainings diverged."""
    seeds = [str(c.seed) for c in curves if c.diverged]
    which = f" with seed {', '.join(seeds)}" if len(seeds) < len(curves) else ""
    return f"{curves[0].model} diverged{which}."


def _won(first: str, second: str, by: float, score: Score) -> str:
    name, _, unit = score.label.partition(", ")
    if by == 0:
        return f"{first} and {second} are equal in validation {name}"
    points = " points" if unit == "%" else f" {unit}" if unit else ""
    return f"{first} wins by {by:.3g}{points} in validation {name}"


class Cell(NamedTuple):
    """A number, which may be empty, and a note below it."""

    value: str = ""
    note: str = ""


class Column(NamedTuple):
    """A heading, and a cell for each training."""

    heading: str
    cells: list[Cell]


def fold(cells: Sequence[Cell]) -> Cell:
    """Return one cell for the seeds of a model: mean and standard deviation of their numbers."""
    found = [cell for cell in cells if cell.value]
    if not found:
        return Cell()
    values = [float(cell.value) for cell in found]
    notes = list(dict.fromkeys(cell.note for cell in found))
    # what differs from seed to seed stands in the rows of the seeds
    note = notes[0] if len(notes) == 1 else ""
    if len(found) < len(cells):
        note = "; ".join([*([note] if note else []), f"{len(found)} of {len(cells)} seeds"])
    if len(set(values)) == 1 or not all(map(isfinite, values)):
        return Cell(found[0].value if len(set(values)) == 1 else f"{fmean(values):.4g}", note)
    # two digits of the deviation, and as many of the mean as it leaves certain
    return Cell(with_deviation(values, max(0, 1 - floor(log10(stdev(values))))), note)


def columns(trainings: Sequence[tuple[Entry, Outcome, Curve]]) -> list[Column]:
    """Return the columns that have a value in at least one row."""
    labels = {entry.score.label for entry, _, _ in trainings}

    def scores(part: str) -> str:
        return f"{part} {next(iter(labels))}" if len(labels) == 1 else part

    def ours(entry: Entry, value: float, *notes: str) -> Cell:
        unit = () if len(labels) == 1 else (entry.score.label,)
        return Cell(f"{value:.4g}", "; ".join((*unit, *notes)))

    def tested(statistics: Statistics) -> list[Cell]:
        return [test(entry, outcome.tested(statistics)) for entry, outcome, _ in trainings]

    def test(entry: Entry, metrics: dict[str, float]) -> Cell:
        if (value := metrics.get(f"test/{entry.score.name}")) is None:
            return Cell()
        error = metrics.get(SAMPLING_ERROR)
        off = () if error is None else (f"± {entry.score.in_unit(error):.2g} of sampling",)
        return ours(entry, entry.score.in_unit(value), *off)

    def validated(entry: Entry, outcome: Outcome, curve: Curve) -> Cell:
        if outcome.best is None:
            # scores without a finite one show nan, a missing validation shows nothing
            return ours(entry, nan) if curve.values else Cell()
        return ours(entry, entry.score.in_unit(outcome.best), f"epoch {outcome.best_epoch}")

    def training(entry: Entry, outcome: Outcome, curve: Curve) -> Cell:
        value = trained_at(curve, outcome.best_step)
        return Cell() if value is None else ours(entry, value)

    def paper(outcome: Outcome) -> Cell:
        number = outcome.papers_number
        return Cell() if number is None else Cell(f"{number:.4g}", outcome.metric)

    def steps(outcome: Outcome, curve: Curve) -> Cell:
        return Cell(f"{outcome.steps}", "then diverged" if curve.diverged else "")

    every = [
        Column(scores("test"), tested("population")),
        Column(f"{scores('test')}, batch statistics", tested("batch")),
        Column(scores("best validation"), [validated(*training) for training in trainings]),
        Column(f"{scores('training')} in that epoch", [training(*each) for each in trainings]),
        Column("the paper", [paper(o) for _, o, _ in trainings]),
        Column("epochs", [Cell(f"{o.epochs}") for _, o, _ in trainings]),
        Column("steps", [steps(o, curve) for _, o, curve in trainings]),
        Column("seconds", [Cell(f"{o.seconds:.0f}") for _, o, _ in trainings]),
    ]
    return [column for column in every if any(cell.value for cell in column.cells)]
