"""A training step with recurrent dropout or peepholes ÷ one without, verified, measured in turn.

python benchmarks/dropout.py
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch

import rnnorm
from rnnorm import CellDropout, SequenceDropout, Zoneout
from rnnorm.experiments.bench.layers import Shape, draw_input, on_backend, read_shape, verify
from rnnorm.experiments.bench.record import describe, machine
from rnnorm.experiments.bench.timing import interleave, torch_threads

SHAPES = [Shape(100, 32, 64, 256), Shape(784, 100, 1, 100), Shape(50, 64, 128, 512)]
OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "LSTM": {
        "without": {},
        "Zoneout": {"recurrent_dropout": Zoneout()},
        "CellDropout": {"recurrent_dropout": CellDropout()},
        "SequenceDropout": {"recurrent_dropout": SequenceDropout(input=0.25, hidden=0.25)},
        "peephole='output'": {"peephole": "output"},
        "peephole='all'": {"peephole": "all"},
    },
    "GRU": {
        "without": {},
        "Zoneout": {"recurrent_dropout": Zoneout(cell=0)},
        "CellDropout": {"recurrent_dropout": CellDropout()},
        "SequenceDropout": {"recurrent_dropout": SequenceDropout(hidden=0.25)},
    },
    "RNN": {
        "without": {},
        "Zoneout": {"recurrent_dropout": Zoneout(cell=0)},
        "SequenceDropout": {"recurrent_dropout": SequenceDropout(hidden=0.25)},
    },
}


def step(layer: torch.nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The output and the gradients of all parameters; every call draws the same masks."""
    torch.manual_seed(0)
    output = layer(x)[0]
    names, parameters = zip(*layer.named_parameters(), strict=True)
    return {
        "output": output.detach(),
        **dict(zip(names, torch.autograd.grad(output.sum(), parameters), strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cell", choices=OPTIONS, default="LSTM")
    parser.add_argument("--norm", default="batch")
    parser.add_argument("--shape", type=read_shape, action="append", help="TxBxIxH")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=12.0, help="for each shape")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    args = parser.parse_args()
    with torch_threads(args.threads):
        print(describe(machine()))
        for shape in args.shape or SHAPES:
            x = draw_input(shape)
            steps = {}
            for name, options in OPTIONS[args.cell].items():
                torch.manual_seed(1)
                layer = getattr(rnnorm, args.cell)(
                    shape.I, shape.H, norm=args.norm, initial_noise=0.0, **options
                )
                steps[name] = partial(on_backend, "cpu", partial(step, layer, x))
                reference = partial(on_backend, "reference", partial(step, layer, x))
                verify(f"{args.cell} {shape}, {name}", steps[name], reference)
            for name, took in interleave(steps, args.seconds, clock=args.clock).items():
                print(
                    f"{args.cell:4} {shape!s:15} {name:18} {1e3 * took.seconds:8.2f} ms {took}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
