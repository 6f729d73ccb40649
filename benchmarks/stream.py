"""A frame of a stream, one row with its state: ours and our frozen copy ÷ torch.nn's, verified.

python benchmarks/stream.py
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import rnnorm
from rnnorm.experiments.bench.layers import on_backend, verify
from rnnorm.experiments.bench.record import describe, machine
from rnnorm.experiments.bench.timing import interleave, torch_threads

FRAMES = 50
SIZES = (8, 64, 128, 256)


@torch.no_grad()
def stream(layer: nn.Module, x: Tensor, state: Any, **step: int) -> dict[str, Tensor]:
    """The outputs of frames that are given one by one."""
    outputs = []
    for frame in x.split(1):
        output, state = layer(frame, state, **step)
        outputs.append(output)
    return {"output": torch.cat(outputs)}


def sides(cell: str, norm: str | None, size: int) -> dict[str, partial[dict[str, Tensor]]]:
    """The three to be compared; ours is trained for some steps, so that its rows differ."""
    torch.manual_seed(0)
    plain = getattr(nn, cell)(size, size).eval()
    ours = getattr(rnnorm, cell)(size, size, norm=norm)
    for _ in range(3):
        ours(torch.randn(10, 20, size))
    ours.eval()
    x, h = torch.randn(FRAMES, 1, size), torch.zeros(1, 1, size)
    state = (h, h) if cell == "LSTM" else h
    frozen = rnnorm.freeze(ours)
    verify(
        f"{cell} {size}",
        partial(stream, frozen, x, state, step=5),
        partial(on_backend, "reference", partial(stream, ours, x, state, step=5)),
    )
    return {
        "torch.nn": partial(stream, plain, x, state),
        "ours": partial(stream, ours, x, state, step=5),
        "frozen": partial(stream, frozen, x, state, step=5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--norm", default="batch")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each size")
    args = parser.parse_args()
    with torch_threads(args.threads):
        print(describe(machine()))
        for cell in ("LSTM", "GRU", "RNN"):
            for size in SIZES:
                steps = sides(cell, args.norm, size)
                for name, took in interleave(steps, args.seconds).items():
                    print(
                        f"{cell:4} {size:4} {name:9} {1e6 * took.seconds / FRAMES:8.1f} µs {took}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
