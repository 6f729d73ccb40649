"""A training step whose loss reads the last output alone, as a ratio to torch.nn.LSTM's, verified.

    python benchmarks/last_state.py
    python benchmarks/last_state.py --flush     # with torch.set_flush_denormal(True)

From the last step back a gradient vanishes until it consists of subnormal numbers.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from torch import Tensor, nn

from rnnorm.experiments.bench.layers import (
    Shape,
    Variant,
    make_layer,
    on_backend,
    run_layer,
    verify,
)
from rnnorm.experiments.bench.record import describe, machine
from rnnorm.experiments.bench.timing import interleave, torch_threads

SHAPES = [Shape(T, 32, 40, 250) for T in (100, 300, 1000)]
NORMS = (None, "laurent2015-sequence", "batch")


class LastOutput(nn.Module):
    """A layer of which the last output alone is seen."""

    def __init__(self, variant: Variant | None, shape: Shape) -> None:
        super().__init__()
        self.layer = make_layer("LSTM", shape, variant)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.layer(x)[0][-1],)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=5.0, help="for each shape")
    parser.add_argument("--flush", action="store_true", help="torch takes them for zeros, too")
    args = parser.parse_args()
    torch.set_flush_denormal(args.flush)
    with torch_threads(args.threads):
        print(describe(machine()))
        for shape in SHAPES:
            torch.manual_seed(0)
            x = torch.randn(shape[:3])
            steps = {"torch.nn": partial(run_layer, LastOutput(None, shape), x, True)}
            for norm in NORMS:
                run = partial(run_layer, LastOutput(Variant(norm), shape), x, True)
                ours = partial(on_backend, "cpu", run)
                verify(f"{shape} {norm}", ours, partial(on_backend, "reference", run))
                steps[norm or "no norm"] = ours
            for name, took in interleave(steps, args.seconds).items():
                print(
                    f"{shape!s:15} {name:20} {1e3 * took.seconds:9.2f} ms {took}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
