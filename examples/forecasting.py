"""Forecast a series some hours ahead, and compare norms.

python examples/forecasting.py ETTh1.csv    # columns: a date, then numbers; the last is forecast
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss

import rnnorm

HISTORY, AHEAD = 96, 24


class Forecaster(nn.Module):
    def __init__(self, features, norm):
        super().__init__()
        self.rnn = rnnorm.LSTM(features, 64, norm=norm)
        self.out = nn.Linear(64, AHEAD)

    def forward(self, x):
        output, _ = self.rnn(x)
        return self.out(output[-1])


def windows(values, starts):
    """Histories (T, B, F) and what comes after them (B, AHEAD)."""
    x = torch.stack([values[s : s + HISTORY] for s in starts], 1)
    y = torch.stack([values[s + HISTORY : s + HISTORY + AHEAD, -1] for s in starts])
    return x, y


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--norms", nargs="+", default=["none", "batch"])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rows", type=int, default=14400, help="hours to use")
    given = parser.parse_args()
    with open(given.file, encoding="utf-8") as file:
        columns = range(1, len(file.readline().split(",")))
    table = np.loadtxt(given.file, np.float32, delimiter=",", skiprows=1, usecols=columns)
    values = torch.from_numpy(table[: given.rows])
    cut = int(0.8 * len(values))
    values = (values - values[:cut].mean(0)) / values[:cut].std(0)
    last = cut - HISTORY - AHEAD
    x_test, y_test = windows(values, range(cut, len(values) - HISTORY - AHEAD, AHEAD))
    for name in given.norms:
        torch.manual_seed(0)
        model = Forecaster(values.size(1), None if name == "none" else name)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(given.epochs):
            for starts in torch.randperm(last).split(64)[: last // 64]:
                x, y = windows(values, starts.tolist())
                loss = mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        if name not in ("none", "layer"):
            starts = torch.randperm(last).split(64)[: last // 64]
            rnnorm.update_bn((windows(values, rows.tolist())[0] for rows in starts), model)
        model.eval()
        with torch.no_grad():
            print(f"{name:8} test mean squared error {mse_loss(model(x_test), y_test):.3f}")


if __name__ == "__main__":
    main()
