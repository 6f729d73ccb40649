"""A training step of the normalised recurrences that people have, verified, one thread.

    python benchmarks/formulations.py
    python benchmarks/formulations.py --shape 35x20x650x650

Each LSTM is divided by our LSTM with norm="layer", each other layer by our GRU with norm="layer",
and all of them by torch.nn's layer without a norm: its LSTM, or its GRU.
"""

from __future__ import annotations

import argparse
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn

import rnnorm
from rnnorm.experiments.bench.layers import Shape, Step, on_backend, read_shape, verify
from rnnorm.experiments.bench.record import describe, machine
from rnnorm.experiments.bench.timing import interleave, torch_threads

SHAPES = [Shape(100, 32, 40, 250), Shape(35, 20, 650, 650)]
# the first of each is what the others are divided by
LSTMS = [
    "layer",
    *("haste", "fastrnns", "tf-addons", "torchaudio-rnnt", "sketch-rnn", "layer-norm-basic"),
    *("rms", "batch"),
]
OTHERS = {
    "GRU layer": (rnnorm.GRU, {"norm": "layer"}),
    "GRU haste": (rnnorm.GRU, {"norm": "haste"}),
    "GRU dreamer": (rnnorm.GRU, {"norm": "dreamer", "reset_after": "both"}),
    "GRU rms": (rnnorm.GRU, {"norm": "rms"}),
    "LiGRU": (rnnorm.LiGRU, {}),
    "LiGRU ligru": (rnnorm.LiGRU, {"norm": "ligru"}),
    "LiGRU sligru": (rnnorm.LiGRU, {"norm": "sligru"}),
    "IndRNN": (rnnorm.IndRNN, {}),
    "IndRNN layer": (rnnorm.IndRNN, {"norm": rnnorm.LayerNorm(recurrent=False)}),
}


def step(layer: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The output, and the gradients of all parameters."""
    output, _ = layer(x)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    grads = torch.autograd.grad(output.square().sum(), parameters)
    return {"output": output.detach(), **dict(zip(names, grads, strict=True))}


def build(shape: Shape) -> dict[str, Step]:
    """Every step by name, ours verified with the reference."""
    torch.manual_seed(0)
    x, sizes = torch.randn(shape[:3]), (shape.I, shape.H)
    ours = {f"LSTM {norm}": rnnorm.LSTM(*sizes, norm=norm, initial_noise=0.0) for norm in LSTMS}
    ours |= {
        name: make(*sizes, initial_noise=0.0, **options) for name, (make, options) in OTHERS.items()
    }
    steps: dict[str, Step] = {
        "torch.nn.LSTM": partial(step, nn.LSTM(*sizes), x),
        "torch.nn.GRU": partial(step, nn.GRU(*sizes), x),
    }
    for name, layer in ours.items():
        # no silent fallback: the step fails where the kernel does not run the layer
        steps[name] = partial(on_backend, "cpu", partial(step, layer, x))
        exact = partial(step, deepcopy(layer).double(), x.double())
        references = [partial(on_backend, "reference", each) for each in (steps[name], exact)]
        references[0] = partial(on_backend, "reference", partial(step, layer, x))
        verify(f"{shape} {name}", steps[name], *references)
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--shape", type=read_shape, help="TxBxIxH")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each shape")
    args = parser.parse_args()
    with torch_threads(args.threads):
        print(describe(machine()))
        for shape in [args.shape] if args.shape else SHAPES:
            took = interleave(build(shape), args.seconds)
            for name, timing in took.items():
                kind = "LSTM" if "LSTM" in name else "GRU"
                beside, torchs = (
                    took[f"{k}{kind}{n}"] for k, n in (("", " layer"), ("torch.nn.", ""))
                )
                print(
                    f"{shape!s:15} {name:22} {1e3 * timing.seconds:8.2f} ms, ÷ torch.nn.{kind} "
                    f"{timing.seconds / torchs.seconds:5.2f}, ÷ {kind} layer "
                    f"{timing.seconds / beside.seconds:5.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
