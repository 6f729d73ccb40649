"""
A stream in onnxruntime
=======================

A small net learns to predict the next value of a signal. It is exported to ONNX, loaded in
onnxruntime, and reads a signal frame by frame. :doc:`/export` has the other ways from training to
use.

.. code-block:: sh

   python examples/export_and_stream.py --save forecaster.onnx
"""

import argparse
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnxruntime
import torch
from torch import nn

import rnnorm

parser = argparse.ArgumentParser(description="Train a net, and stream with it in onnxruntime.")
parser.add_argument("--minibatches", type=int, default=100)
parser.add_argument("--save", help="path of the ONNX file, which is otherwise temporary")
# a notebook has no command line
given = parser.parse_args([] if "get_ipython" in globals() else None)
torch.manual_seed(0)

# %%
# Training
# --------
#
# The net also returns its state, so that the next call can go on from there. Batch norm has
# statistics for each step of a sequence, and ``step`` says which step comes first.


class Forecaster(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.rnn = rnnorm.LSTM(1, hidden_size, norm="batch")
        self.out = nn.Linear(hidden_size, 1)

    def forward(self, x, state=None, step=0):
        output, state = self.rnn(x, state, step=step)
        return self.out(output), state


def signals(steps, rows):
    phase, rate = torch.rand(2, rows)
    t = torch.arange(steps + 1).unsqueeze(1)
    return torch.sin(6 * phase + (0.1 + 0.3 * rate) * t).unsqueeze(2)


model = Forecaster(32)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(given.minibatches):
    x = signals(50, 32)
    loss = nn.functional.mse_loss(model(x[:-1])[0], x[1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
rnnorm.update_bn((signals(50, 32)[:-1] for _ in range(20)), model)
model.eval()

# %%
# Export
# ------
#
# The example has two rows of different age: the file takes any number of rows and steps, and each
# row its own ``step``.

folder = tempfile.TemporaryDirectory()
file = given.save or Path(folder.name, "forecaster.onnx")
zeros = torch.zeros(1, 2, 32)
example = (torch.zeros(3, 2, 1), (zeros, zeros), torch.tensor([0, 4]))
sizes = rnnorm.export.onnx(model, example, file)
print(f"inputs: {', '.join(sizes)}")

# %%
# The stream
# ----------
#
# Each call of onnxruntime reads one frame, and gives the state for the next.

x = signals(70, 1)
session = onnxruntime.InferenceSession(file)
names = [put.name for put in session.get_inputs()]
state, outputs = [np.zeros((1, 1, 32), np.float32)] * 2, []
for step, frame in enumerate(x[:-1].numpy()):
    inputs = [frame[None], *state, np.array([step])]
    output, *state = session.run(None, dict(zip(names, inputs, strict=True)))
    outputs.append(output)
with torch.no_grad():
    whole, _ = model(x[:-1])
streamed = torch.from_numpy(np.concatenate(outputs))
print(f"streamed as in one pass: {torch.allclose(streamed, whole, atol=1e-5)}")
print(f"mean square error: {(streamed[10:] - x[11:]).square().mean():.4f}")

# %%

plt.plot(x[1:].flatten(), label="the signal")
plt.plot(streamed.flatten(), "--", label="what the net predicted a frame before")
plt.xlabel("frame")
plt.legend()
plt.show()
