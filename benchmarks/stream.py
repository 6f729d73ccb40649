"""A frame of a stream, one row with its state: ours and our frozen copy ÷ torch.nn's, verified.

    python benchmarks/stream.py
    python benchmarks/stream.py --cells

The second form takes a step of a one-step class on 16 rows with their state, in evaluation and in
training (forward and backward): ours with batch and with layer norm ÷ torch.nn's. In training
stands beside each norm what autograd alone takes: a function of the same tensors that computes
nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
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
ROWS, CELL_SIZES = 16, (32, 512)


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


class Nothing(torch.autograd.Function):
    """A function with the inputs, saved tensors and gradients of a step, which computes nothing."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        """Return a tensor of the form of the second input, h."""
        ctx.save_for_backward(*given)
        ctx.set_materialize_grads(False)
        return torch.empty_like(given[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """Return gradients that are not written."""
        wanted = zip(ctx.saved_tensors, ctx.needs_input_grad, strict=True)
        return tuple([torch.empty_like(t) if wants else None for t, wants in wanted])


def step_by_step(
    cell: Callable[..., Any], x: Tensor, state: Any, leaves: dict[str, nn.Parameter], **step: int
) -> dict[str, Tensor]:
    """The last h of steps that all begin at one state, and the gradients of its sum."""
    grads: tuple[Tensor, ...] = ()
    with torch.set_grad_enabled(bool(leaves)):
        for frame in x:
            found = cell(frame, state, **step)
            h = found[0] if isinstance(found, tuple) else found
            if leaves:
                grads = torch.autograd.grad(h.sum(), list(leaves.values()))
    return {"h": h.detach(), **dict(zip(leaves, grads, strict=True))}


def cells(cell: str, size: int, train: bool) -> dict[str, partial[dict[str, Tensor]]]:
    """The three cells to be compared, all with a given state."""
    torch.manual_seed(0)
    x, state = torch.randn(FRAMES, ROWS, size), torch.randn(2, ROWS, size).unbind()
    hx = state if cell == "LSTM" else state[0]
    found = {}
    for norm in (None, "batch", "layer"):
        name = f"{cell}Cell"
        module = (
            getattr(rnnorm, name)(size, size, norm=norm) if norm else getattr(nn, name)(size, size)
        )
        module(x[0])
        module.train(train)
        leaves = dict(module.named_parameters()) if train else {}
        # a stream in evaluation says which step it is at
        step = {"step": 0} if norm and not train else {}
        found[norm or "torch.nn"] = run = partial(step_by_step, module, x, hx, leaves, **step)
        if norm:
            verify(f"{name} {size}", run, partial(on_backend, "reference", run))
        if norm and train:
            alone = partial(_autograd_alone, list(leaves.values()))
            found[f"{norm} floor"] = partial(step_by_step, alone, x, hx, leaves)
    return found


def _autograd_alone(leaves: list[Tensor], x: Tensor, hx: Any) -> Tensor:
    states = hx if isinstance(hx, tuple) else (hx,)
    return Nothing.apply(x, *states, *leaves)  # type: ignore[no-any-return, no-untyped-call]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--norm", default="batch")
    parser.add_argument("--cells", action="store_true", help="steps of the one-step classes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each size")
    args = parser.parse_args()
    with torch_threads(args.threads):
        print(describe(machine()))
        for cell in ("LSTM", "GRU", "RNN"):
            if args.cells:
                for size in CELL_SIZES:
                    for train in (False, True):
                        what = f"{cell}Cell {size:4} {'training' if train else 'evaluation':10}"
                        show(what, cells(cell, size, train), args.seconds)
                continue
            for size in SIZES:
                show(f"{cell:4} {size:4}", sides(cell, args.norm, size), args.seconds)


def show(what: str, steps: dict[str, partial[dict[str, Tensor]]], seconds: float) -> None:
    """Time the sides of a comparison in turn and print their times of a frame."""
    for name, took in interleave(steps, seconds).items():
        print(f"{what} {name:12} {1e6 * took.seconds / FRAMES:8.1f} µs {took}", flush=True)


if __name__ == "__main__":
    main()
