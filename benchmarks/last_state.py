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

from rnnorm.experiments.bench.layers import Shape, Variant, make_layer, on_backend, verify
from rnnorm.experiments.bench.record import describe, machine
from rnnorm.experiments.bench.timing import interleave, torch_threads

SHAPES = [Shape(T, 32, 40, 250) for T in (100, 300, 1000)]
NORMS = (None, "laurent2015-sequence", "batch")


def step(layer: nn.RNNBase, x: Tensor) -> dict[str, Tensor]:
    """The last output, and the gradient of its sum by every parameter."""
    last = layer(x)[0][-1]
    names, parameters = zip(*layer.named_parameters(), strict=True)
    grads = torch.autograd.grad(last.sum(), parameters)
    return {"output": last.detach(), **dict(zip(names, grads, strict=True))}


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
            steps = {"torch.nn": partial(step, make_layer("LSTM", shape), x)}
            for norm in NORMS:
                run = partial(step, make_layer("LSTM", shape, Variant(norm)), x)
                ours = partial(on_backend, "cpu", run)
                verify(f"{shape} {norm}", ours, partial(on_backend, "reference", run))
                steps[norm or "no norm"] = ours
            for name, took in interleave(steps, args.seconds).items():
                low, high = took.spread
                print(
                    f"{shape!s:15} {name:20} {1e3 * took.seconds:9.2f} ms "
                    f"{took.ratio:5.2f} [{low:.2f} {high:.2f}]",
                    flush=True,
                )


if __name__ == "__main__":
    main()
