"""The table of a report: the score first, then the paper's, then what it took."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import NamedTuple

from rnnorm.experiments.comparing.entry import Entry
from rnnorm.experiments.measuring.curve import Curve
from rnnorm.experiments.measuring.measurement import Statistics
from rnnorm.experiments.measuring.outcome import Outcome
from rnnorm.experiments.training.score import SAMPLING_ERROR


class Cell(NamedTuple):
    """A number, empty where there is none, and what is said below it."""

    value: str = ""
    note: str = ""


class Column(NamedTuple):
    """A heading, and a cell for each training."""

    heading: str
    cells: list[Cell]


def columns(trainings: Sequence[tuple[Entry, Outcome, Curve]]) -> list[Column]:
    """The columns that have a value in some row."""
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
        off = () if error is None else (f"± {entry.score.shown(error):.2g} of sampling",)
        return ours(entry, entry.score.shown(value), *off)

    def validated(entry: Entry, outcome: Outcome, curve: Curve) -> Cell:
        if outcome.best is None:
            # no score is finite, or there is none
            return ours(entry, nan) if curve.values else Cell()
        return ours(entry, entry.score.shown(outcome.best), f"epoch {outcome.best_epoch}")

    def paper(outcome: Outcome) -> Cell:
        return Cell() if outcome.number is None else Cell(f"{outcome.number:.4g}", outcome.metric)

    def steps(outcome: Outcome, curve: Curve) -> Cell:
        return Cell(f"{outcome.steps}", "then diverged" if curve.diverged else "")

    every = [
        Column(scores("test"), tested("population")),
        Column(f"{scores('test')}, batch statistics", tested("batch")),
        Column(scores("best validation"), [validated(*training) for training in trainings]),
        Column("the paper", [paper(o) for _, o, _ in trainings]),
        Column("epochs", [Cell(f"{o.epochs}") for _, o, _ in trainings]),
        Column("steps", [steps(o, curve) for _, o, curve in trainings]),
        Column("seconds", [Cell(f"{o.seconds:.0f}") for _, o, _ in trainings]),
    ]
    return [column for column in every if any(cell.value for cell in column.cells)]
