"""Train a small net, export it to ONNX, load it in onnxruntime, and read a signal frame by frame.

python examples/export_and_stream.py
"""

import argparse

import numpy as np
import onnxruntime
import torch
from torch import nn

import rnnorm


class Forecaster(nn.Module):
    """Says the next value of a signal, and gives its state back for the one after that."""

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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minibatches", type=int, default=300)
    parser.add_argument("--save", default="forecaster.onnx")
    given = parser.parse_args()
    torch.manual_seed(0)
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

    # two rows of different age: the file takes any number of rows and steps
    zeros = torch.zeros(1, 2, 32)
    example = (torch.zeros(3, 2, 1), (zeros, zeros), torch.tensor([0, 4]))
    sizes = rnnorm.export.onnx(model, example, given.save)
    print(f"inputs: {', '.join(sizes)}")

    x = signals(70, 1)
    session = onnxruntime.InferenceSession(given.save)
    names = [put.name for put in session.get_inputs()]
    state, said = [np.zeros((1, 1, 32), np.float32)] * 2, []
    for step, frame in enumerate(x[:-1].numpy()):
        # the statistics of a step belong to it: say which one comes
        inputs = [frame[None], *state, np.array([step])]
        output, *state = session.run(None, dict(zip(names, inputs, strict=True)))
        said.append(output)
    with torch.no_grad():
        whole, _ = model(x[:-1])
    streamed = torch.from_numpy(np.concatenate(said))
    print(f"streamed as in one pass: {torch.allclose(streamed, whole, atol=1e-5)}")
    print(f"mean square error: {(streamed[10:] - x[11:]).square().mean():.4f}")


if __name__ == "__main__":
    main()
