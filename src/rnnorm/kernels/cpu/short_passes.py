"""Both passes of a short call, by a copy of a struct that was made before."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnorm.kernels.cpu.backward import GRADIENTS
from rnnorm.kernels.cpu.c_struct import known_shapes, slots, slots_of, write_addresses
from rnnorm.kernels.cpu.forward import PASSES
from rnnorm.kernels.cpu.library import CLayer, CPopulation, run, update
from rnnorm.kernels.inputs import (
    DIFFERENTIABLE,
    LEAVES,
    PARAMETERS,
    RESULTS,
    Inputs,
    Options,
    Results,
)
from rnnorm.kernels.operators import checked_upstream, form, saved
from rnnorm.tracing import never_compiled, unobserved

# what autograd saves of a call: the leaves and all other tensors
_SAVED = (*Inputs._fields[:LEAVES], "reserve", "output", *Inputs._fields[LEAVES:])
# no c after every step is returned
_RETURNED = DIFFERENTIABLE.index("all_c")
_GRADIENTS = tuple([name for name in GRADIENTS if name != "grad_all_c"])
_PARAMETERS, _RESERVE = _SAVED.index(PARAMETERS[0]), _SAVED.index("reserve")


class _Reserve(NamedTuple):
    """The layout of one tensor that holds all results of a forward pass that are not returned.

    Args:
        numbers: how many numbers the tensor has.
        starts: index of the first number of each result, by its name.
        shapes: shape of each result.
        slots: for each result, its index in ``c_struct.slots`` and the offset of its first byte.
    """

    numbers: int
    starts: dict[str, int]
    shapes: tuple[tuple[int, ...], ...]
    slots: tuple[tuple[int, int], ...]

    def results(self, reserve: Tensor, output: Tensor | None) -> Results:
        """Return the results as the operators take them, from the tensor ``reserve``."""
        parts = zip(self.starts.items(), self.shapes, strict=True)
        held = {name: reserve[at : at + prod(shape)].view(shape) for (name, at), shape in parts}
        if output is not None:
            held["output"] = output
        # no backward pass reads h_n, c_n and all_c
        absent = {name: reserve.new_empty(0) for name in RESULTS if name not in held}
        return Results(**absent | held)


@lru_cache(256)
def _reserve_of(
    sizes: tuple[int, ...], options: Options, save: bool, one_step: bool, bytes_each: int
) -> _Reserve:
    shapes = known_shapes(sizes, options, save, False, options.carry)
    # a user may change h_n, which is all that one step returns of its output
    returned = DIFFERENTIABLE[1:] if save and one_step else DIFFERENTIABLE
    held = {
        name: shape
        for name, shape in zip(RESULTS, shapes, strict=True)
        if name not in returned and shape != (0,)
    }
    starts = [0]
    for shape in held.values():
        # whole cache lines
        starts.append(starts[-1] + -(-prod(shape) // 16) * 16)
    of_struct = [
        (slot, start * bytes_each)
        for slot, start in zip(slots_of(tuple(held)), starts, strict=False)
    ]
    return _Reserve(
        starts[-1], dict(zip(held, starts, strict=False)), tuple(held.values()), tuple(of_struct)
    )


@lru_cache(64)
@torch.inference_mode(False)
def _sizes(steps: int, rows: int) -> Tensor:
    return torch.full((steps,), rows, dtype=torch.int64, device="cpu")


class ShortPasses:
    """The passes of one call of a layer.

    Args:
        layer: struct with the addresses of parameters and constants, which the call changes.
        options: options of both passes.
        forms: forms of the parameters that there are.
        constants: the inputs after ``Inputs.leaves``, empty if all of them are None.
        sizes: T, B, input size and H.
        one_step: whether there is one step, whose output is h_n alone.
    """

    active: Tensor
    reserve: Tensor
    parts: _Reserve

    def __init__(
        self,
        layer: CLayer,
        options: Options,
        forms: list[tuple[Any, ...]],
        constants: Sequence[Tensor | None],
        sizes: tuple[int, int, int, int],
        one_step: bool = False,
    ) -> None:
        self.layer, self.options, self.forms, self.constants = layer, options, forms, constants
        self.sizes, self.one_step = sizes, one_step

    def run(self, leaves: Sequence[Any], differentiable: bool) -> tuple[Tensor, ...]:
        """Run the forward pass; return output unless of one step, h_n and, if there is one, c_n.

        Args:
            leaves: ``Inputs.leaves``, contiguous and already checked, no wrappers of torch.func;
                ``sizes`` are None for rows of one length; x of one step is ``(B, I)``.
            differentiable: whether autograd has to record the pass.
        """
        if not differentiable:
            return self.forward(leaves, False)
        return _record(*leaves, self)  # type: ignore[no-any-return, no-untyped-call]

    def forward(self, leaves: Sequence[Any], save: bool) -> tuple[Tensor, ...]:
        """Run the forward pass without autograd."""
        x, sizes, h, c, *_ = leaves
        layer, (T, B, _, units) = self.layer, self.sizes
        # held while the pass runs: calls of other sizes may drop it from the cache
        self.active = active = _sizes(T, B) if sizes is None else sizes
        layer.T, layer.B, layer.sizes = T, B, active.data_ptr()
        h_n = torch.empty_like(h)
        like = x if layer.narrow else h
        results = (h_n,) if self.one_step else (like.new_empty((T, B, units)), h_n)
        # field by field, which is faster than ``write_addresses``
        layer.x, layer.h0, layer.h_n = x.data_ptr(), h.data_ptr(), h_n.data_ptr()
        layer.output = results[0].data_ptr()
        if c is not None:
            c_n = torch.empty_like(c)
            results = (*results, c_n)
            layer.c0, layer.c_n = c.data_ptr(), c_n.data_ptr()
        self.parts = parts = _reserve_of(
            self.sizes, self.options, save, self.one_step, h.element_size()
        )
        if parts.slots:
            self.reserve = h.new_empty(parts.numbers)
            first, of_layer = self.reserve.data_ptr(), slots(layer)
            for slot, at in parts.slots:
                of_layer[slot] = first + at
        run("rnnorm_forward", layer)
        return results

    def update(self, sites: ctypes.Array[CPopulation], names: Sequence[tuple[str, str]]) -> None:
        """Take the statistics of the forward pass into population statistics.

        Args:
            sites: the populations, to which what was taken is added.
            names: names of the mean and the variance taken at each site.
        """
        first, size = self.reserve.data_ptr(), self.reserve.element_size()
        starts = self.parts.starts
        for site, (mean, var) in zip(sites, names, strict=True):
            site.taken_mean = first + size * starts[mean]
            site.taken_var = first + size * starts[var]
        update(sites, self.reserve.dtype is torch.float64)


class _ShortLayer(torch.autograd.Function):
    """A short call that autograd records, used only where nothing observes operators.

    Its arguments are the leaves, and the call.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        """Run the forward pass."""
        x, sizes, h, c, *parameters, call = arguments
        results = call.forward((x, sizes, h, c), True)
        ctx.ragged = sizes is not None
        # not the call itself, which holds the reserve longer than the backward pass needs it
        ctx.layer, ctx.options, ctx.sizes, ctx.parts = (
            call.layer,
            call.options,
            call.sizes,
            call.parts,
        )
        others = (call.reserve, None if call.one_step else results[0], *call.constants)
        tensors = (x, call.active, h, c, *parameters, *others)
        ctx.save_for_backward(*tensors)
        given = (x, call.active, h) if c is None else (x, call.active, h, c)
        made = [t for t in others if t is not None]
        ctx.forms = [*map(form, given), *call.forms, *map(form, made)]
        ctx.addresses = [t.data_ptr() for t in tensors if t is not None]
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    # a compiled function that calls loss.backward() would trace it
    @never_compiled
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """Run the backward pass.

        Raises:
            RuntimeError: if a saved tensor or the gradient of a result has another form than in
                the forward pass.
        """
        tensors = saved(ctx, _SAVED)
        output = tensors[_RESERVE + 1]
        if output is None:
            # a step returns h_n in its place
            grads = (None, *grads)
        held = [t for t in tensors if t is not None]
        usual = torch.is_grad_enabled() or not unobserved((*held, *grads))
        # hooks on saved tensors may have put others in their place
        if usual or list(map(Tensor.data_ptr, held)) != ctx.addresses:
            return _usual_gradients(ctx, tensors, grads)
        forms = (None if output is None else form(output), *ctx.forms[2:4])
        upstream = checked_upstream(grads, forms)
        wanted = ctx.needs_input_grad[:LEAVES]
        found = [
            # the kernel can leave out x and the states alone
            torch.empty_like(t) if t is not None and (wants or k >= _PARAMETERS) else None
            for k, (t, wants) in enumerate(zip(tensors, wanted, strict=False))
        ]
        if ctx.ragged and found[0] is not None:
            # the kernel writes no gradient of padding
            found[0].zero_()
        # another backward pass may have other gradients
        layer = CLayer.from_buffer_copy(ctx.layer)
        absent = [None] * (_RETURNED - len(upstream))
        # no short call has a projection, whose weight is the last leaf
        x, _, *others = found[:-1]
        write_addresses(layer, _GRADIENTS, (*upstream, *absent, x, *others))
        run("rnnorm_backward", layer)
        return (*[g if wants else None for g, wants in zip(found, wanted, strict=True)], None)


# Function.apply without its look for transforms of torch.func, and for what these have left behind
_record = super(torch.autograd.Function, _ShortLayer).apply


def _usual_gradients(ctx: Any, tensors: Sequence[Any], grads: Sequence[Tensor | None]) -> Any:
    """Return the gradients as the usual call does, whose backward pass makes its own struct."""
    (x, *leaves), (reserve, output, *constants) = tensors[:_RESERVE], tensors[_RESERVE:]
    T, B, features, _ = ctx.sizes
    others = constants or [None] * (len(Inputs._fields) - LEAVES)
    inputs = Inputs(x.view(T, B, features), *leaves, *others)
    grads = (*grads, *[None] * (len(DIFFERENTIABLE) - len(grads)))
    grad_x, *rest = PASSES.gradients(ctx, inputs, ctx.parts.results(reserve, output), grads)
    return (None if grad_x is None else grad_x.view(x.shape), *rest, None)
