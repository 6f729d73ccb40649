"""Conversion of tensors to the C struct of one layer, and the shapes of the results."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import cache, lru_cache

import torch
from torch import Tensor

from rnnorm.kernels.cpu.library import (
    KINDS,
    OVER,
    CLayer,
    CMask,
    CSite,
    in_whole_factors,
    multiplies_bfloat16,
    number_of,
    own_multiplies_bfloat16,
)
from rnnorm.kernels.inputs import PEEPHOLES, PLACES, RESULTS, Inputs, Options, Results, Sites

#: dtypes that the kernel computes in
COMPUTED = (torch.float32, torch.float64)
#: dtypes of x and of the weights of its products, in the order of csrc/layer.h
MULTIPLIED = (*COMPUTED, torch.bfloat16)


def recomputes(input_size: int, hidden_size: int) -> bool:
    """Tell whether backward recomputes ``W_x x``: up to 7 % more arithmetic, 40 % less memory."""
    return input_size <= hidden_size // 4


def padded_units(hidden_size: int) -> int:
    """Return the number of hidden units, rounded up so that the last tile has 4, 8 or 16."""
    rest = hidden_size % 16
    return hidden_size - rest + next(width for width in (0, 4, 8, 16) if rest <= width)


def forward_shapes(
    inputs: Inputs, options: Options, save: bool, exchanged: bool = False
) -> list[tuple[int, ...]]:
    """Return the shapes of ``Results``; an absent tensor has no elements.

    For a norm by row the moments are each frame's mean and one over its standard deviation. Saved
    are, of every frame and tile after tile of hidden units, ``W_x x``, ``W_h h``, all states beside
    h and, where zoneout or the carry site changes c, the c that the next step reads; and what a
    projection multiplies, frame after frame. ``exchanged`` says that statistics are those of
    several processes.
    """
    sizes = (*inputs.x.shape, inputs.hidden_size)
    narrow = None if inputs.weight_hr is None else inputs.h0.shape[-1]
    carried = inputs.mask_zoneout_c is not None or options.carry
    # a size of traced code may be a symbol
    find = known_shapes if {*map(type, (*sizes, narrow or 0))} == {int} else _forward_shapes
    return find(sizes, options, save, exchanged, carried, narrow)


def _forward_shapes(
    sizes: tuple[int, ...],
    options: Options,
    save: bool,
    exchanged: bool,
    carried: bool,
    narrow: int | None = None,
) -> list[tuple[int, ...]]:
    """Return ``forward_shapes`` for ``sizes`` T, B, input size and H.

    ``narrow`` is the number of units of a projected h.
    """
    T, B, input_size, H = sizes
    scopes = options.by_site
    gates, more, several = options.gates, options.more_states, options.several
    R = H if narrow is None else narrow
    shapes: list[tuple[int, ...]] = [(T, B, R), (B, R), (*several, B, H) if more else (0,)]
    shapes.append((*several, T, B, H) if options.wants_all_c else (0,))
    for site, scope in zip(scopes._fields, scopes, strict=True):
        shape: tuple[int, ...] = (0,)
        if scope.startswith(("row", "rms")):
            parts = 1 if site == "cell" else options.blocks_of(scope)
            shape = (parts, T * B) if save else (0,)
        elif scope != "off" and options.min_rows >= 0:
            shape = (1 if scope == "sequence" else T, (1 if site == "cell" else gates) * H)
        shapes += (shape, shape)
    summed = options.joint or scopes.hidden == "off"
    fused = not options.separate and scopes.input == "off" and summed
    # exchanged statistics of W_x x are taken before the first step
    again = recomputes(input_size, H) and not (exchanged and scopes.input == "frame")
    keeps_x = scopes.input == "sequence" or (save and not fused and not again)
    shapes.append((T * B, gates * padded_units(H)) if keeps_x else (0,))
    shapes.append((T * B, gates * padded_units(H)) if save else (0,))
    shapes.append((*several, T * B, padded_units(H)) if save and more else (0,))
    shapes.append((T * B, padded_units(H)) if save and carried else (0,))
    shapes.append((T * B, H) if save and narrow is not None else (0,))
    return shapes


#: ``_forward_shapes`` with a cache, for sizes that are integers and not symbols
known_shapes = lru_cache(256)(_forward_shapes)


_BFLOAT16 = multiplies_bfloat16()


def widened(inputs: Inputs, options: Options) -> Inputs:
    """Return inputs with what is not multiplied in bfloat16, of x and the weights, in float32."""
    if inputs.x.dtype != torch.bfloat16:
        return inputs
    heads = options.heads or 1
    head_size = inputs.hidden_size // heads if heads > 1 else 0
    if options.own:
        multiplies = own_multiplies_bfloat16(options.cell) and in_whole_factors(head_size)
    else:
        multiplies = _BFLOAT16
    if multiplies:
        # a vector multiplies h unit by unit
        return inputs if options.heads else inputs._replace(weight_hh=inputs.weight_hh.float())
    return inputs._replace(
        x=inputs.x.float(),
        weight_ih=inputs.weight_ih.float(),
        weight_hh=inputs.weight_hh.float(),
        weight_hr=None if inputs.weight_hr is None else inputs.weight_hr.float(),
    )


# all fields of the struct take eight bytes
_Slots = ctypes.c_int64 * (ctypes.sizeof(CLayer) // 8)
_FIELDS_OF_SITE = {
    "gamma": CSite.gamma,
    "beta": CSite.beta,
    "mean": CSite.constant_mean,
    "var": CSite.constant_var,
    "last": CSite.constant_last,
    "step": CSite.constant_step,
    "taken_mean": CSite.mean,
    "taken_var": CSite.var,
    "grad_gamma": CSite.grad_gamma,
    "grad_beta": CSite.grad_beta,
}


def _offsets() -> dict[str, int]:
    """Return the offset in the struct of the address of each tensor of both passes, by its name.

    The offsets of the two numbers of a site's constants, ``last`` and ``step``, are there too.
    """
    found = {name: getattr(CLayer, name).offset for name, *_ in CLayer._fields_}
    for k, site in enumerate(Sites._fields):
        start = CLayer.site.offset + k * ctypes.sizeof(CSite)
        found |= {f"{name}_{site}": start + f.offset for name, f in _FIELDS_OF_SITE.items()}
    for k, name in enumerate(PEEPHOLES):
        found[name] = CLayer.peephole.offset + 8 * k
        found[f"grad_{name}"] = CLayer.grad_peephole.offset + 8 * k
    for k, name in enumerate(PLACES):
        start = CLayer.mask.offset + k * ctypes.sizeof(CMask)
        found[f"mask_{name}"] = start + CMask.drawn.offset
    return found


_OFFSETS = _offsets()


@cache
def slots_of(names: tuple[str, ...]) -> list[int]:
    """Return the indices in ``slots`` of the addresses of tensors of a pass."""
    return [_OFFSETS[name] // 8 for name in names]


def slots(layer: CLayer) -> ctypes.Array[ctypes.c_int64]:
    """Return the fields of the struct as an array in the same memory."""
    return _Slots.from_buffer(layer)


def write_addresses(
    layer: CLayer, names: tuple[str, ...], tensors: Iterable[Tensor | None]
) -> None:
    """Write the addresses of tensors of a pass into the struct, except for those that are None."""
    fields = slots(layer)
    for slot, tensor in zip(slots_of(names), tensors, strict=True):
        if tensor is not None:
            fields[slot] = tensor.data_ptr()


_TENSORS = (*Inputs._fields, *RESULTS)


def describe(inputs: Inputs, options: Options, results: Results) -> CLayer:
    """Fill the struct of a layer, without the gradients.

    Args:
        inputs: inputs of both passes.
        options: options of both passes.
        results: results of the forward pass, see ``forward_shapes``.
    """
    sizes = (*inputs.x.shape, inputs.hidden_size)
    others = tuple([None if t is None else t.shape for t in inputs.without_gradients])
    layer = CLayer.from_buffer_copy(
        without_tensors(sizes, MULTIPLIED.index(inputs.x.dtype), options, others)
    )
    layer.R = inputs.h0.shape[-1]
    layer.narrow = results.output.dtype == torch.bfloat16
    write_addresses(layer, _TENSORS, (*inputs, *results))
    return layer


@lru_cache(256)
def without_tensors(
    sizes: tuple[int, ...],
    numbers: int,
    options: Options,
    others: tuple[tuple[int, ...] | None, ...],
) -> CLayer:
    """Return the struct of a layer without addresses.

    Args:
        sizes: T, B, input size and H.
        numbers: index in ``MULTIPLIED`` of the dtype of x.
        options: options of both passes.
        others: shapes of the constants, the masks and ``reset``.
    """
    layer = CLayer()
    layer.cell = number_of(options.cell)
    layer.numbers = numbers
    layer.T, layer.B, layer.I, layer.H = sizes
    layer.R = layer.H
    layer.heads = options.heads or 1
    layer.min_rows, layer.joint, layer.carry = options.min_rows, options.joint, options.carry
    layer.clears, layer.recompute = options.clears, recomputes(layer.I, layer.H)
    of_sites = zip(layer.site, options.by_site, options.eps, others[:6:2], strict=True)
    for site, scope, eps, shape in of_sites:
        kind, _, over = scope.partition("-")
        site.scope, site.over, site.eps = KINDS.index(kind), OVER.index(over), eps
        if shape is not None:
            steps, rows, features = shape
            site.constant_last, site.constant_step = steps - 1, rows * features
            site.constant_row = features if rows > 1 else 0
    for mask, scale, shape in zip(layer.mask, options.scales, others[6:-1], strict=True):
        if shape is not None:
            steps, rows, features = shape
            mask.scale = scale
            mask.step = rows * features if steps > 1 else 0
            mask.row = features if rows > 1 else 0
    return layer
