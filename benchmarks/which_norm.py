"""Test errors of six norms on four real data sets, with three kinds of population statistics.

    python benchmarks/which_norm.py --data-dir FOLDER    # JapaneseVowels, PenDigits, ETTh1.csv

Prints the mean over the seeds, and their standard deviation where there are several.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils.rnn import pad_sequence

import rnnorm
from rnnorm.experiments.data.series import Series, load_series
from rnnorm.experiments.data.text_file import find_text, read_text

UNITS = 64
NORMS = {
    "None": None,
    "batch": "batch",
    "batch, γ = 1": rnnorm.BatchNorm(gamma=1.0),
    "laurent2015-sequence": "laurent2015-sequence",
    "layer": "layer",
    "rms": "rms",
}
KINDS = ("running average", "update_bn", "select_horizon")


class Problem(NamedTuple):
    """Three parts, with a class or the values to forecast for each series."""

    train: Series
    val: Series
    test: Series
    outputs: int
    rows: int
    epochs: int


def vowels(folder: Path) -> Problem:
    """Nine speakers, 7 to 29 steps."""
    *parts, classes = load_series("JapaneseVowels", folder)[:4]
    return Problem(*parts, len(classes), rows=32, epochs=30)


def pen(folder: Path) -> Problem:
    """Ten digits, 8 points."""
    *parts, classes = load_series("PenDigits", folder, "uci", features=2)[:4]
    return Problem(*parts, len(classes), rows=64, epochs=3)


def digits(folder: Path) -> Problem:
    """Ten digits, 64 pixels in a fixed random order."""
    images, y = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(64)
    whole = Series(list(torch.tensor(images[:, order, None] / 16).float()), torch.tensor(y))
    rows = np.random.RandomState(0).permutation(len(y)).tolist()
    parts = (rows[:1200], rows[1200:1400], rows[1400:])
    return Problem(*(whole.rows(part) for part in parts), 10, rows=64, epochs=15)


def ett(folder: Path, history: int = 96, ahead: int = 24) -> Problem:
    """Seven series an hour, of which the last is forecast for a day; twelve, four, four months."""
    file = find_text(folder, "ETTh1.csv") or find_text(folder / "timeseries" / "ETT", "ETTh1.csv")
    if file is None:
        raise FileNotFoundError(f"{folder} lacks ETTh1.csv")
    lines = read_text(file).splitlines()[1:14401]
    values = torch.tensor([[float(v) for v in line.split(",")[1:]] for line in lines])
    values = (values - values[:8640].mean(0)) / values[:8640].std(0)

    def windows(first: int, last: int, step: int) -> Series:
        starts = range(first, last - history - ahead, step)
        future = [values[s + history : s + history + ahead, -1] for s in starts]
        return Series([values[s : s + history] for s in starts], torch.stack(future))

    parts = windows(0, 8640, 3), windows(8640, 11520, ahead), windows(11520, 14400, ahead)
    return Problem(*parts, ahead, rows=64, epochs=2)


PROBLEMS: dict[str, Callable[[Path], Problem]] = {
    "JapaneseVowels, error %": vowels,
    "PenDigits, error %": pen,
    "permuted digits, error %": digits,
    "ETTh1, squared error": ett,
}


class Net(nn.Module):
    def __init__(self, features: int, outputs: int, norm: str | rnnorm.BatchNorm | None) -> None:
        super().__init__()
        self.rnn = rnnorm.LSTM(features, UNITS, norm=norm)
        self.out = nn.Linear(UNITS, outputs)

    def forward(self, x: list[Tensor]) -> Tensor:
        _, (h_n, _) = self.rnn(pad_sequence(x), lengths=[len(each) for each in x])
        scores: Tensor = self.out(h_n[0])
        return scores


def minibatches(series: Series, rows: int) -> Iterator[Series]:
    order = torch.randperm(len(series.y))
    yield from (series.rows(part.tolist()) for part in order.split(rows)[: len(order) // rows])


def loss(model: Net, series: Series) -> Tensor:
    measure = mse_loss if series.y.is_floating_point() else cross_entropy
    return measure(model(series.x), series.y)


@torch.no_grad()
def test_error(model: Net, series: Series) -> float:
    model.eval()
    if series.y.is_floating_point():
        return loss(model, series).item()
    return 100 * (model(series.x).argmax(1) != series.y).float().mean().item()


def train(
    problem: Problem, norm: str | rnnorm.BatchNorm | None, lr: float, seed: int
) -> list[float]:
    """The test error with each kind of statistics; one where there are no statistics."""
    torch.manual_seed(seed)
    model = Net(problem.train.x[0].size(1), problem.outputs, norm)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(problem.epochs):
        for batch in minibatches(problem.train, problem.rows):
            optimizer.zero_grad()
            loss(model, batch).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    found = [test_error(model, problem.test)]
    if norm not in (None, "layer", "rms"):
        inputs = ((batch.x,) for batch in minibatches(problem.train, problem.rows))
        rnnorm.update_bn(inputs, model)
        found.append(test_error(model, problem.test))
    if norm not in (None, "layer", "rms", "laurent2015-sequence"):
        with torch.no_grad():
            rnnorm.select_horizon(model, lambda model: loss(model, problem.val).item())
        found.append(test_error(model, problem.test))
    return found


def cell(scores: np.ndarray) -> str:
    digits = 1 if scores.max() > 1 else 3
    deviation = f" ± {scores.std(ddof=1):.{digits}f}" if len(scores) > 1 else ""
    return f"{scores.mean():.{digits}f}{deviation}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="of every set, instead of its own number")
    given = parser.parse_args()
    print(f"| set | norm | {' | '.join(KINDS)} |\n|{'---|' * (2 + len(KINDS))}")
    for title, load in PROBLEMS.items():
        problem = load(given.data_dir)
        if given.epochs is not None:
            problem = problem._replace(epochs=given.epochs)
        for name, norm in NORMS.items():
            runs = [train(problem, norm, given.lr, seed) for seed in range(given.seeds)]
            cells = [cell(scores) for scores in np.array(runs).T]
            cells += ["–"] * (len(KINDS) - len(cells))
            print(f"| {title} | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
