"""
Forecasts of a series
=====================

Nets with different norms forecast a series a day ahead. The series on this page is made up. Name a
file to forecast a series of your own, such as
`ETTh1.csv <https://github.com/zhouhaoyi/ETDataset>`_:

.. code-block:: sh

   python examples/forecasting.py ETTh1.csv --norms none batch laurent2015-sequence
"""

import argparse

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss

import rnnorm

parser = argparse.ArgumentParser(description="Forecast a series, and compare norms.")
parser.add_argument(
    "file", nargs="?", help="columns: a date, then numbers, the last of which is forecast"
)
parser.add_argument("--norms", nargs="+", default=["none", "layer", "batch"])
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--rows", type=int, default=14400, help="how many rows of the file to use")
# a notebook has no command line
given = parser.parse_args([] if "get_ipython" in globals() else None)
HISTORY, AHEAD = 96, 24

# %%
# The series
# ----------
#
# Two columns for each hour of 100 days: the weather, which drifts, and the load, which follows the
# weather, the hour and the day of the week. The load is forecast. The last fifth of the series is
# the test set.


def make_up(hours):
    generator = np.random.default_rng(0)
    t = np.arange(hours)
    weather = np.sin(2 * np.pi * t / 24) + 0.1 * np.cumsum(generator.standard_normal(hours))
    week = np.where(t // 24 % 7 < 5, 1.0, 0.3)
    load = week * np.sin(2 * np.pi * (t - 6) / 24) + 0.3 * weather
    load += 0.1 * generator.standard_normal(hours)
    return np.stack([weather, load], 1).astype(np.float32)


def read(file):
    with open(file, encoding="utf-8") as lines:
        columns = range(1, len(lines.readline().split(",")))
    return np.loadtxt(file, np.float32, delimiter=",", skiprows=1, usecols=columns)


table = make_up(2400) if given.file is None else read(given.file)
values = torch.from_numpy(table[: given.rows])
cut = int(0.8 * len(values))
values = (values - values[:cut].mean(0)) / values[:cut].std(0)
last = cut - HISTORY - AHEAD


def windows(starts):
    """Return histories (T, B, F) and what comes after them (B, AHEAD)."""
    x = torch.stack([values[s : s + HISTORY] for s in starts], 1)
    y = torch.stack([values[s + HISTORY : s + HISTORY + AHEAD, -1] for s in starts])
    return x, y


x_test, y_test = windows(range(cut, len(values) - HISTORY - AHEAD, AHEAD))

# %%
# Training
# --------
#
# Each net reads four days, and its last output becomes the forecast of the next day.


class Forecaster(nn.Module):
    def __init__(self, features, norm):
        super().__init__()
        self.rnn = rnnorm.LSTM(features, 64, norm=norm)
        self.out = nn.Linear(64, AHEAD)

    def forward(self, x):
        output, _ = self.rnn(x)
        return self.out(output[-1])


def minibatches():
    return torch.randperm(last).split(64)[: last // 64]


forecasts = {}
for name in given.norms:
    torch.manual_seed(0)
    model = Forecaster(values.size(1), None if name == "none" else name)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(given.epochs):
        for starts in minibatches():
            x, y = windows(starts.tolist())
            loss = mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    if name not in ("none", "layer"):
        rnnorm.update_bn((windows(starts.tolist())[0] for starts in minibatches()), model)
    model.eval()
    with torch.no_grad():
        forecasts[name] = model(x_test)
    print(f"{name:8} test mean squared error {mse_loss(forecasts[name], y_test):.3f}")

# %%
# A week of the test set, forecast each midnight for the day to come.

plt.plot(y_test[:7].flatten(), color="black", label="the series")
for name, forecast in forecasts.items():
    plt.plot(forecast[:7].flatten(), label=f"norm: {name}")
plt.xlabel("hour")
plt.legend()
plt.show()
