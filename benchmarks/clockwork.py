"""A step of a ClockworkRNN beside one of an RNN, both on the reference kernel.

python benchmarks/clockwork.py
"""

from __future__ import annotations

import argparse
import time

import torch

import rnnorm
from rnnorm.experiments.bench.record import describe, machine
from rnnorm.experiments.bench.timing import torch_threads

PERIODS = (1, 2, 4, 8, 16, 32, 64, 128)


def milliseconds(layer: torch.nn.Module, x: torch.Tensor, training: bool, repeats: int) -> float:
    """Time of one step, the best of all repeats."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        with torch.set_grad_enabled(training), rnnorm.use_backend("reference"):
            output, _ = layer(x)
            if training:
                output.sum().backward()
        best = min(best, time.perf_counter() - start)
    return 1e3 * best / len(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, default=6)
    given = parser.parse_args()
    if given.repeats < 1:
        parser.error(f"--repeats must be 1 or more, got {given.repeats}")
    with torch_threads(1):
        print(describe(machine()))
        for norm in (None, "batch"):
            for units in (128, 512, 1024):
                torch.manual_seed(0)
                x = torch.randn(128, 64, 64)
                rnn = rnnorm.RNN(64, units, norm=norm)
                clockwork = rnnorm.ClockworkRNN(64, units, PERIODS, norm=norm)
                for training in (True, False):
                    for layer in (rnn, clockwork):
                        layer.train(training)
                    plain, ours = (
                        milliseconds(layer, x, training, given.repeats)
                        for layer in (rnn, clockwork)
                    )
                    mode = "training" if training else "evaluation"
                    print(
                        f"{norm!s:6} {units:5} units  {mode:10} "
                        f"RNN {plain:6.3f} ms a step, ClockworkRNN {ours:6.3f}, {ours / plain:.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
