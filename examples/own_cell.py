"""
A cell of your own
==================

A cell is the equations of one step. This example writes two cells, and trains each with and
without batch norm to add two numbers of a sequence. :doc:`/own-cell` explains all options of a
cell.

.. code-block:: sh

   python examples/own_cell.py --steps 30 --minibatches 1000
"""

import argparse

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import mse_loss

import rnnorm

parser = argparse.ArgumentParser(description="Train two cells of your own.")
parser.add_argument("--steps", type=int, default=8, help="length of the sequences")
parser.add_argument("--minibatches", type=int, default=200)
# a notebook has no command line
given = parser.parse_args([] if "get_ipython" in globals() else None)

# %%
# Two cells
# ---------
#
# A LiGRU is a GRU without reset gate and with a rectifier (Ravanelli et al. 2018). It has the
# weights of two gates, so it needs only ``gates`` besides the step.


class LiGRU(rnnorm.Cell):
    gates = (2,)

    def step(self, weights, x_term, state, normalise, t):
        (h,) = state
        z, n = self.preactivation(weights, x_term, h, normalise).chunk(2, 1)
        h = torch.lerp(torch.relu(n), h, torch.sigmoid(z))
        return h, (h,)


# %%
# Each unit of an IndRNN sees only its own state: h = relu(W x + b + u h) (Li et al. 2018). It has a
# vector u where other cells have a matrix, so it also defines its weights.


class IndRNN(rnnorm.Cell):
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


# %%
# The task
# --------
#
# Each frame has a number and a mark. One number of the first half and one of the second half are
# marked. The net has to give their sum.


def draw(steps, rows=64):
    """Return frames (T, B, 2), and for each row the sum of its two marked numbers (B,)."""
    numbers, marks = torch.rand(steps, rows), torch.zeros(steps, rows)
    first = torch.randint(steps // 2, (1, rows))
    marks.scatter_(0, torch.cat([first, first + steps // 2]), 1.0)
    return torch.stack([numbers, marks], 2), (numbers * marks).sum(0)


class Adder(nn.Module):
    def __init__(self, cell, norm):
        super().__init__()
        self.layers = rnnorm.Recurrent(cell, 2, 64, norm=norm)
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        output, _ = self.layers(x)
        return self.out(output[-1]).squeeze(1)


# %%
# Training
# --------
#
# After training with batch norm, ``rnnorm.update_bn`` takes the statistics of the trained weights.
# A net that always answers with the mean would have an error of 1/6.

for cell in (LiGRU(), IndRNN()):
    for norm in (None, "laurent2015-frame"):
        torch.manual_seed(0)
        model = Adder(cell, norm)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        losses = []
        for _ in range(given.minibatches):
            x, y = draw(given.steps)
            loss = mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        if norm is not None:
            rnnorm.update_bn((draw(given.steps)[0] for _ in range(100)), model)
        model.eval()
        with torch.no_grad():
            x, y = draw(given.steps, rows=2000)
            print(f"{cell.name:8}{norm or 'none':20}error {mse_loss(model(x), y):.4f}")
        plt.semilogy(losses, label=f"{cell.name}, norm: {norm or 'none'}")

plt.xlabel("minibatch")
plt.ylabel("mean squared error, training")
plt.legend()
plt.show()
