"""Steps of our layers and of torch.nn's on the same data, checked with the reference."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import rnnorm

Step = Callable[[], dict[str, Tensor]]

#: largest difference from the reference, relative to its size
TOLERANCE = 1e-3
#: how much further than the reference a step may be from the result in float64
ROUNDING = 10.0


class Shape(NamedTuple):
    """Sizes of a layer and of its input.

    Attributes:
        T: time steps.
        B: rows.
        I: input size.
        H: hidden units.
        shortest: lengths are uniform in this to T, and the input is packed; None for a dense one.
        layers: number of layers.
        bidirectional: whether each layer runs in both directions.
        proj_size: units of h after an LSTM's projection, 0 without.
    """

    T: int
    B: int
    I: int  # noqa: E741
    H: int
    shortest: int | None = None
    layers: int = 1
    bidirectional: bool = False
    proj_size: int = 0

    def __str__(self) -> str:
        steps = str(self.T) if self.shortest is None else f"{self.shortest}-{self.T}"
        projected = f" to {self.proj_size}" if self.proj_size else ""
        return "x".join([steps, *map(str, self[1:4])]) + projected


class ShapeError(ValueError, ArgumentTypeError):
    """A text is not a shape; argparse tells a user the reason."""


def read_shape(text: str) -> Shape:
    """Parse a shape written as ``TxBxIxH``, such as ``100x32x40x250``.

    Raises:
        ShapeError: if the text is not four positive numbers, or there is a single row.
    """
    sizes = text.split("x")
    if len(sizes) != 4 or not all(size.isdecimal() and int(size) for size in sizes):
        raise ShapeError(f"a shape must be TxBxIxH, such as 100x32x40x250, got {text!r}")
    T, B, inputs, H = map(int, sizes)
    if B < 2:
        raise ShapeError(f"a shape must have 2 rows or more for batch statistics, got {text!r}")
    return Shape(T, B, inputs, H)


class Variant(NamedTuple):
    """A norm and backend to compare with torch.nn's class.

    Attributes:
        norm: None, ``"batch"``, or another name.
        backend: one of ``rnnorm.backends()``, None for the one that rnnorm chooses.
    """

    norm: str | None
    backend: str | None = None

    def __str__(self) -> str:
        return f"{self.norm or 'none'} {self.backend or ''}".rstrip()


class VerificationError(RuntimeError):
    """A kernel's result differs from the reference's."""


def prepare(
    cell: str, shape: Shape, variants: Iterable[Variant], *, train: bool
) -> dict[str, Step]:
    """Build the steps of torch.nn's class and of ours, and verify ours.

    A training step is forward and backward, with the gradients of all parameters. A step in
    evaluation is forward without gradients, with population statistics.

    Args:
        cell: ``"LSTM"``, ``"GRU"`` or ``"RNN"``.
        shape: shape of layer and data.
        variants: variants of our layer.
        train: whether the steps are training steps.

    Returns:
        The steps by name: ``"torch.nn"`` first, then each variant.

    Raises:
        VerificationError: if a variant's output or gradient differs from the reference's.
        RuntimeError: if a variant's backend is not available or does not cover the variant.
    """
    torch.manual_seed(0)
    data = draw_input(shape)
    rival = make_layer(cell, shape).train(train)
    steps: dict[str, Step] = {"torch.nn": partial(run_layer, rival, data, train)}
    for variant in variants:
        layer = make_layer(cell, shape, variant)
        if not train:
            # a single row has no batch statistics
            layer(draw_input(shape._replace(B=max(2, shape.B))))
            layer.eval()
        step = partial(run_layer, layer, data, train)
        forced = step if variant.backend is None else partial(on_backend, variant.backend, step)
        if variant.backend != "reference":
            what = f"{cell} {shape}, norm {variant}, {'training' if train else 'evaluation'}"
            exact = partial(run_layer, deepcopy(layer).double(), data.to(torch.float64), train)
            verify(what, forced, *(partial(on_backend, "reference", s) for s in (step, exact)))
        steps[str(variant)] = forced
    return steps


def make_layer(cell: str, shape: Shape, variant: Variant | None = None) -> nn.RNNBase:
    """Build our layer of a variant, or torch.nn's layer if the variant is None."""
    options: dict[str, Any] = {"bidirectional": shape.bidirectional, "num_layers": shape.layers}
    if shape.proj_size:
        options["proj_size"] = shape.proj_size
    if variant is None:
        return cast(nn.RNNBase, getattr(nn, cell)(shape.I, shape.H, **options))
    # noise would hide a wrong result
    options |= {"norm": variant.norm, "initial_noise": 0.0}
    return cast(nn.RNNBase, getattr(rnnorm, cell)(shape.I, shape.H, **options))


def draw_input(shape: Shape) -> Tensor | PackedSequence:
    """Draw a random input ``(T, B, I)``, packed if the shape has a shortest length."""
    x = torch.randn(shape.T, shape.B, shape.I)
    if shape.shortest is None:
        return x
    lengths = torch.randint(shape.shortest, shape.T + 1, (shape.B,))
    return pack_padded_sequence(x, lengths, enforce_sorted=False)


def on_backend(name: str, step: Step) -> dict[str, Tensor]:
    """Run a step on one kernel."""
    with rnnorm.use_backend(name):
        return step()


def verify(what: str, step: Step, reference: Step, exact: Step | None = None) -> None:
    """Compare a step with one that runs on the reference kernel.

    Args:
        what: the name of the step in the message.
        step: the step to be timed.
        reference: the same step on the reference kernel.
        exact: the same step in float64, asked if the two differ by more than ``TOLERANCE``: the
            step may be ``ROUNDING`` times as far from it as the reference is.

    Raises:
        VerificationError: if a tensor that the step returns differs.
    """
    ours, expected = step(), reference()
    true: dict[str, Tensor] = {}
    for name, tensor in ours.items():
        distance, allowed = relative_difference(tensor, expected[name]), TOLERANCE
        # negated so that nan is an error
        if not distance <= allowed and exact is not None:
            true = true or exact()
            distance = relative_difference(tensor, true[name])
            allowed = ROUNDING * relative_difference(expected[name], true[name])
        if not distance <= allowed:
            raise VerificationError(
                f"{what}: {name} differs from the reference kernel's by {distance:.1e} of its "
                f"size, more than {allowed:.0e}; nothing was timed"
            )


def relative_difference(one: Tensor, other: Tensor) -> float:
    """Return the norm of the difference of two tensors, relative to the norm of ``other``."""
    size = float(other.double().norm())
    # avoid dividing by zero where the tensor is zero
    return float((one.double() - other.double()).norm()) / (size or 1.0)


def run_layer(layer: nn.RNNBase, data: Any, train: bool) -> dict[str, Tensor]:
    """Return a layer's output, and in training the gradients of its sum by the parameters."""
    with torch.set_grad_enabled(train):
        output = layer(data)[0]
    output = output.data if isinstance(output, PackedSequence) else output
    if not train:
        return {"output": output}
    names, parameters = zip(*layer.named_parameters(), strict=True)
    grads = torch.autograd.grad(output.sum(), parameters)
    return {"output": output.detach(), **dict(zip(names, grads, strict=True))}
