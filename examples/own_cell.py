"""Write a cell of your own, and train it with and without batch norm.

python examples/own_cell.py    # the adding problem: remember two numbers of a sequence
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import mse_loss

import rnnorm


class LiGRU(rnnorm.Cell):
    """A GRU without reset gate, with a rectifier (Ravanelli et al. 2018)."""

    gates = (2,)

    def step(self, weights, x_term, state, normalise, t):
        (h,) = state
        z, n = self.preactivation(weights, x_term, h, normalise).chunk(2, 1)
        h = torch.lerp(torch.relu(n), h, torch.sigmoid(z))
        return h, (h,)


class IndRNN(rnnorm.Cell):
    """Each unit sees itself alone, h = relu(W x + b + u h) (Li et al. 2018)."""

    sites = ("input", "recurrent")

    def weights(self, input_size, hidden_size, bias):
        shapes = {"weight_ih": (hidden_size, input_size), "u": (hidden_size,)}
        return shapes | ({"bias_ih": (hidden_size,)} if bias else {})

    def units(self, weights):
        return weights.own["u"].size(0)

    def step(self, weights, x_term, state, normalise, t):
        (h,) = state
        h = torch.relu(x_term + normalise("recurrent", weights.own["u"] * h))
        return h, (h,)


class Adder(nn.Module):
    def __init__(self, cell, norm):
        super().__init__()
        self.layers = rnnorm.Recurrent(cell, 2, 64, norm=norm)
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        output, _ = self.layers(x)
        return self.out(output[-1]).squeeze(1)


def draw(steps, rows=64):
    """Numbers and marks (T, B, 2), and for each row the sum of its two marked numbers (B,)."""
    numbers, marks = torch.rand(steps, rows), torch.zeros(steps, rows)
    first = torch.randint(steps // 2, (1, rows))
    marks.scatter_(0, torch.cat([first, first + steps // 2]), 1.0)
    return torch.stack([numbers, marks], 2), (numbers * marks).sum(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30, help="length of the sequences")
    parser.add_argument("--minibatches", type=int, default=1000)
    given = parser.parse_args()
    for cell in (LiGRU(), IndRNN()):
        for norm in (None, "laurent2015-frame"):
            torch.manual_seed(0)
            model = Adder(cell, norm)
            optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
            for _ in range(given.minibatches):
                x, y = draw(given.steps)
                loss = mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            if norm is not None:
                rnnorm.update_bn((draw(given.steps)[0] for _ in range(100)), model)
            model.eval()
            with torch.no_grad():
                x, y = draw(given.steps, rows=2000)
                print(f"{cell.name:8}{norm or 'none':20}error {mse_loss(model(x), y):.4f}")


if __name__ == "__main__":
    main()
