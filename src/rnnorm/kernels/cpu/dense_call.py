"""Both passes over rows of one length, whose struct is a copy of one that was made before."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnorm.kernels.cpu.backward import GRADIENTS
from rnnorm.kernels.cpu.c_struct import known_shapes, place, place_addresses
from rnnorm.kernels.cpu.forward import PASSES
from rnnorm.kernels.cpu.library import Layer, Population, run, update
from rnnorm.kernels.inputs import DIFFERENTIABLE, RESULTS, Gradients, Inputs, Options, Results
from rnnorm.kernels.operators import allocate_gradients, gradients, keep, kept
from rnnorm.tracing import unobserved

# what the backward pass reads, and what autograd saves of it
_READ = (*Inputs._fields, "output")
_SAVED = (*[name for name in _READ if name != "sizes"], "reserve")
# results whose addresses the struct of the backward pass has already
_UNREAD: list[Any] = [None] * (len(RESULTS) - 1)


class _Reserve(NamedTuple):
    """The one tensor that holds what a forward pass leaves beside the results that it returns.

    Args:
        numbers: how many it has.
        names: names of the results.
        starts: index of the first number of each result.
        shapes: shape of each result.
    """

    numbers: int
    names: tuple[str, ...]
    starts: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]

    def addresses(self, reserve: Tensor) -> list[int]:
        """Return the addresses of the results, in the order of their names."""
        first, size = reserve.data_ptr(), reserve.element_size()
        return [first + size * start for start in self.starts]

    def results(self, output: Tensor, reserve: Tensor) -> Results:
        """Return the results as an operator takes them."""
        parts = zip(self.names, self.starts, self.shapes, strict=True)
        held = {name: reserve[at : at + prod(shape)].view(shape) for name, at, shape in parts}
        # no backward pass reads h_n, c_n and all_c
        absent = {name: reserve.new_empty(0) for name in RESULTS if name not in held}
        return Results(**absent | held | {"output": output})


@lru_cache(256)
def _reserve_of(sizes: tuple[int, ...], options: Options, save: bool) -> _Reserve:
    shapes = known_shapes(sizes, options, save, False, options.carry)
    held = {
        name: shape
        for name, shape in zip(RESULTS, shapes, strict=True)
        if name not in DIFFERENTIABLE and shape != (0,)
    }
    starts = [0]
    for shape in held.values():
        # whole cache lines
        starts.append(starts[-1] + -(-prod(shape) // 16) * 16)
    return _Reserve(starts[-1], tuple(held), tuple(starts[:-1]), tuple(held.values()))


@lru_cache(64)
@torch.inference_mode(False)
def _sizes(steps: int, rows: int) -> Tensor:
    return torch.full((steps,), rows, dtype=torch.int64, device="cpu")


class DenseCall:
    """One call of a layer over rows of one length.

    Args:
        layer: struct with the addresses of parameters and constants, which the call changes.
        options: options of both passes.
        constants: the inputs after ``Inputs.leaves``.
        one_step: whether there is one step whose output nobody reads, so that h_n stands for it
            where no backward pass follows.
    """

    sizes: Tensor
    reserve: Tensor
    parts: _Reserve

    def __init__(
        self,
        layer: Layer,
        options: Options,
        constants: Sequence[Tensor | None],
        one_step: bool = False,
    ) -> None:
        self.layer, self.options, self.constants = layer, options, constants
        self.one_step = one_step

    def run(self, leaves: Sequence[Tensor | None], differentiable: bool) -> tuple[Tensor, ...]:
        """Run the forward pass; return output, h_n and, if there is one, c_n.

        Args:
            leaves: ``Inputs.leaves`` with None for ``sizes``, contiguous and already checked.
            differentiable: whether autograd has to record the pass.
        """
        if differentiable:
            return _DenseLayer.apply(*leaves, self)  # type: ignore[no-any-return,no-untyped-call]
        return self.forward(leaves, False)

    def forward(self, leaves: Sequence[Any], save: bool) -> tuple[Tensor, ...]:
        """Run the forward pass without autograd."""
        x, _, h, c, *_ = leaves
        layer, (T, B, features), units = self.layer, x.shape, h.shape[1]
        self.sizes = _sizes(T, B)
        self.parts = _reserve_of((T, B, features, units), self.options, save)
        h_n = torch.empty_like(h)
        output = h_n if self.one_step and not save else x.new_empty((T, B, units))
        c_n = None if c is None else torch.empty_like(c)
        layer.T, layer.B, layer.sizes = T, B, self.sizes.data_ptr()
        # field by field, which is faster than ``place``
        layer.x, layer.h0, layer.output, layer.h_n = map(Tensor.data_ptr, (x, h, output, h_n))
        if c_n is not None:
            layer.c0, layer.c_n = c.data_ptr(), c_n.data_ptr()
        if save or self.parts.names:
            self.reserve = x.new_empty(self.parts.numbers)
            place_addresses(layer, self.parts.names, self.parts.addresses(self.reserve))
        run("rnnorm_forward", layer)
        return (output, h_n) if c_n is None else (output, h_n, c_n)

    def update(self, sites: ctypes.Array[Population], names: Sequence[tuple[str, str]]) -> None:
        """Take the statistics of the forward pass into population statistics.

        Args:
            sites: the populations, without what was taken.
            names: names of the mean and the variance taken at each site.
        """
        taken = dict(zip(self.parts.names, self.parts.addresses(self.reserve), strict=True))
        sites = type(sites).from_buffer_copy(sites)
        for site, (mean, var) in zip(sites, names, strict=True):
            site.taken_mean, site.taken_var = taken[mean], taken[var]
        update(sites, self.reserve.dtype is torch.float64)


class _DenseLayer(torch.autograd.Function):
    """A dense call that autograd records, used only where nothing observes operators.

    Its arguments are the leaves with None for ``sizes``, and the call.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        """Run the forward pass."""
        *leaves, call = arguments
        results = call.forward(leaves, True)
        # not the call itself, which holds the reserve longer than the backward pass needs it
        ctx.layer, ctx.options, ctx.sizes, ctx.parts = (
            call.layer,
            call.options,
            call.sizes,
            call.parts,
        )
        keep(ctx, (leaves[0], *leaves[2:], *call.constants, results[0], call.reserve))
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """Run the backward pass.

        Raises:
            RuntimeError: if a saved tensor or the gradient of a result has another form than in
                the forward pass.
        """
        x, *others, output, reserve = kept(ctx, _SAVED)
        inputs = Inputs(x, ctx.sizes, *others)
        grads = (*grads, *[None] * (len(DIFFERENTIABLE) - len(grads)))
        if torch.is_grad_enabled() or not unobserved((*inputs, output, reserve, *grads)):
            return (*PASSES.gradients(ctx, inputs, ctx.parts.results(output, reserve), grads), None)
        # another backward pass may have other gradients
        layer = Layer.from_buffer_copy(ctx.layer)
        place_addresses(layer, ctx.parts.names, ctx.parts.addresses(reserve))
        results = Results(output, *_UNREAD)
        return (*gradients(ctx, inputs, results, grads, partial(_backward, layer)), None)


def _backward(
    layer: Layer,
    inputs: Inputs,
    results: Results,
    upstream: Sequence[Tensor | None],
    options: Options,
    wants_x: bool,
) -> Gradients:
    """Run the backward pass, as ``run_backward`` does, with the struct of the forward pass."""
    grads = allocate_gradients(inputs, wants_x, distinct=False)
    # hooks on saved tensors may have put others in their place
    place(layer, _READ, (*inputs, results.output))
    place(layer, GRADIENTS, (*upstream, *grads))
    run("rnnorm_backward", layer)
    return grads
