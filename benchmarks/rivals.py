"""A training step of a layer-normalised LSTM, written in four ways, ÷ rnnorm's fused kernel.

    python benchmarks/rivals.py
    python benchmarks/rivals.py --shape 35x20x650x650 --seconds 120

The rivals are what a user can write: a loop over time, torch.jit.script of it (as PyTorch's
fastrnns), torch.compile of its step, and torch.nn.LSTM without a norm. The first three are compared
with rnnorm before they are timed; one thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

import rnnorm
from rnnorm.experiments.bench.layers import Shape, Step, on_backend, read_shape, run_layer, verify
from rnnorm.experiments.bench.record import describe, machine
from rnnorm.experiments.bench.timing import interleave, torch_threads

SHAPES = [Shape(100, 32, 40, 250), Shape(35, 20, 650, 650), Shape(6, 3, 4, 8)]


def one_step(
    x_term: Tensor,
    h: Tensor,
    c: Tensor,
    weight_hh: Tensor,
    gamma_recurrent: Tensor,
    gamma_cell: Tensor,
    beta_cell: Tensor,
) -> tuple[Tensor, Tensor]:
    """A step of Ba et al. 2016, eq. 20-22; the biases are in the input term."""
    gates = x_term + layer_norm(h @ weight_hh.t(), gamma_recurrent.shape, gamma_recurrent)
    i, f, g, o = gates.chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * layer_norm(c, gamma_cell.shape, gamma_cell, beta_cell).tanh(), c


scripted_step = torch.jit.script(one_step)


@torch.jit.script
def scripted_loop(
    x_terms: Tensor,
    weight_hh: Tensor,
    gamma_recurrent: Tensor,
    gamma_cell: Tensor,
    beta_cell: Tensor,
) -> Tensor:
    """The loop over time that TorchScript compiles."""
    h = torch.zeros_like(x_terms[0, :, : beta_cell.size(0)])
    c = h
    outputs: list[Tensor] = []
    for x_term in x_terms.unbind(0):
        h, c = scripted_step(x_term, h, c, weight_hh, gamma_recurrent, gamma_cell, beta_cell)
        outputs.append(h)
    return torch.stack(outputs)


def loop(
    step: Callable[..., tuple[Tensor, Tensor]], x_terms: Tensor, *parameters: Tensor
) -> Tensor:
    """A loop over time in Python."""
    h = c = torch.zeros_like(x_terms[0, :, : parameters[-1].size(0)])
    outputs = []
    for x_term in x_terms.unbind(0):
        h, c = step(x_term, h, c, *parameters)
        outputs.append(h)
    return torch.stack(outputs)


def by_hand(lstm: nn.RNNBase, x: Tensor, run: Callable[..., Tensor]) -> dict[str, Tensor]:
    """Run a loop with the parameters of a layer; return the output and their gradients."""
    of = {name.removesuffix("_l0"): parameter for name, parameter in lstm.named_parameters()}
    x_terms = layer_norm(x @ of["weight_ih"].t(), of["gamma_input"].shape, of["gamma_input"])
    x_terms = x_terms + (of["bias_ih"] + of["bias_hh"])
    names = ("weight_hh", "gamma_recurrent", "gamma_cell", "beta_cell")
    output = run(x_terms, *[of[name] for name in names])
    grads = torch.autograd.grad(output.sum(), list(of.values()))
    return {"output": output.detach(), **{f"{n}_l0": g for n, g in zip(of, grads, strict=True)}}


def build(shape: Shape) -> dict[str, Step]:
    """Every step by name; those with the norm are verified."""
    torch.manual_seed(0)
    x = torch.randn(shape[:3])
    lstm = rnnorm.LSTM(shape.I, shape.H, norm="layer")
    wide = deepcopy(lstm).double()
    ours = partial(run_layer, lstm, x, True)
    loops: dict[str, Callable[..., Tensor]] = {
        "loop by hand": partial(loop, one_step),
        "torch.jit.script": scripted_loop,
        "torch.compile of the step": partial(loop, torch.compile(one_step)),
    }
    steps = {
        "rnnorm": ours,
        **{name: partial(by_hand, lstm, x, run) for name, run in loops.items()},
    }
    references = [
        partial(on_backend, "reference", partial(run_layer, layer, data, True))
        for layer, data in ((lstm, x), (wide, x.double()))
    ]
    for name, step in steps.items():
        verify(f"{shape} {name}", step, *references)
    # without the norm it computes something else
    steps["torch.nn.LSTM"] = partial(run_layer, nn.LSTM(shape.I, shape.H), x, True)
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--shape", type=read_shape, action="append", help="TxBxIxH")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each shape")
    args = parser.parse_args()
    with torch_threads(1):
        print(describe(machine()))
        for shape in args.shape or SHAPES:
            for name, timing in interleave(build(shape), args.seconds).items():
                ms = 1e3 * timing.seconds
                print(f"{shape!s:15} {name:26} {ms:9.2f} ms {timing}", flush=True)


if __name__ == "__main__":
    main()
