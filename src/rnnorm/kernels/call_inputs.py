"""The arguments of a fused kernel's passes, made of a layer's call and checked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rnnorm.cells.cell import Cell
from rnnorm.kernels.call import LayerCall, Mask, listed, remembered
from rnnorm.kernels.inputs import (
    NO_MASKS,
    NO_SCALES,
    PARAMETERS,
    PEEPHOLES,
    PLACES,
    SCOPES,
    Inputs,
    Options,
    Results,
    Sites,
    joined,
)
from rnnorm.kernels.known_cells import CELL_OF_NAME, CELLS, independent
from rnnorm.norm.moments import Moments
from rnnorm.norm.spec import CELL_SITES, LayerNorm, Norm, RowNorm, field_of
from rnnorm.tracing import constant


def sites_of(active: Collection[str]) -> tuple[str, str, str]:
    """Return the names of the kernel's input, hidden and cell site, given the normalised ones."""
    hidden = "joint" if "joint" in active else "recurrent"
    return "input", hidden, "carry" if "carry" in active else "cell"


@remembered
def _sites_in(cell: Cell, norm: Norm | None) -> tuple[str, str, str]:
    """Return the names of the kernel's input, hidden and cell site in a layer."""
    return sites_of(cell.active_sites(norm))


@remembered
def _counts_of(cell: Cell, _norm: None) -> tuple[int, int | None, int]:
    """Return the number of gates of a cell, that of heads, and a number of weights by unit.

    There is no number of heads if the recurrent weight is a vector. The last number is how many
    weights by unit the last of ``PEEPHOLES`` holds.
    """
    heads, shapes = None if independent(cell) else cell.heads, cell.weights(1, cell.heads, False)
    last = shapes.get(PEEPHOLES[-1], (cell.heads,))[0] // cell.heads
    return sum(cell.gates), heads, last


def inputs_of(call: LayerCall, *, narrow: torch.dtype, wide: torch.dtype) -> Inputs:
    """Gather the tensors of a call: x and the matrices ``narrow``, all others ``wide``.

    Raises:
        RuntimeError: if a parameter has another shape than the layer's.
    """

    def ready(dtype: torch.dtype, tensors: Iterable[Tensor | None]) -> list[Any]:
        return [
            t if t is None or (t.dtype is dtype and t.is_contiguous()) else t.to(dtype).contiguous()
            for t in tensors
        ]

    x, batch_sizes, weights, masks = call.x, call.batch_sizes, call.weights, call.masks
    h0, c0 = call.state[0], joined(call.state[1:])
    if batch_sizes is None:
        batch_sizes = torch.full((x.size(0),), x.size(1), dtype=torch.int64, device="cpu")
    sites = _sites_in(call.cell, call.norm)
    statistics = [m for site in sites for m in call.constants.get(site, (None, None))]
    matrices = (weights.weight_ih, weights.weight_hh, weights.weight_hr)
    x, weight_ih, weight_hh, weight_hr = ready(narrow, (x, *matrices))
    others = [
        weights.bias_ih,
        weights.bias_hh,
        *[weights.own.get(name) for name in PEEPHOLES],
        *[call.gamma.get(site) for site in sites],
        call.beta.get(sites[2]),
    ]
    constants = [m.detach() if m is not None and m.requires_grad else m for m in statistics]
    h0, c0, *others = ready(wide, (h0, c0, *others))
    dropped: Sequence[Tensor | None] = NO_MASKS
    if masks:
        drawn = [masks[place].drawn if place in masks else None for place in PLACES]
        widths = _widths_of_masks(h0.size(1), h0.size(1) if c0 is None else c0.size(-1))
        dropped = [
            m if m is None else m.expand(-1, -1, width).contiguous()
            for m, width in zip(drawn, widths, strict=True)
        ]
    batch_sizes = batch_sizes.contiguous()
    reset = None if call.reset is None else call.reset.contiguous()
    leaves = (x, batch_sizes, h0, c0, weight_ih, weight_hh, *others, weight_hr)
    inputs = Inputs._make((*leaves, *ready(wide, constants), *dropped, reset))
    check_shapes(inputs, call.cell)
    return inputs


def _widths_of_masks(narrow: int, units: int) -> tuple[int, ...]:
    """Return the units of the masks in the order of ``PLACES``, of h and of the cell."""
    return narrow, units, narrow, units


def check_shapes(inputs: Inputs, cell: Cell) -> None:
    """Refuse parameters and statistics beyond whose end the kernel would read.

    Raises:
        RuntimeError: if one has another shape than in a layer of the cell.
    """
    gates, heads, weights_in_last = _counts_of(cell, None)
    (T, B), units, narrow = inputs.x.shape[:2], inputs.hidden_size, inputs.h0.size(1)
    gates *= units
    recurrent = (units,) if heads is None else (gates, narrow // heads)
    matrices = ((gates, inputs.x.size(2)), recurrent)
    row, unit, last = (gates,), (units,), (weights_in_last * units,)
    shapes = (*matrices, row, row, unit, unit, last, row, row, unit, unit, (narrow, units))
    for name, given, shape in zip(PARAMETERS, inputs.parameters, shapes, strict=True):
        if given is not None and given.shape != shape:
            raise RuntimeError(f"{name} must have shape {shape}, got {tuple(given.shape)}")
    if torch.compiler.is_compiling():
        # sizes may be symbols, which a comparison would turn into constants
        return
    for (mean, var), width in zip(inputs.constants, (gates, gates, units), strict=True):
        if mean is None or var is None:
            continue
        shape = mean.shape
        steps = min(shape[0], T)
        if not steps or var.shape != shape or shape not in ((steps, 1, width), (steps, B, width)):
            raise RuntimeError(
                f"mean and var of a population must have {width} features for each of at most {T} "
                f"steps, got {tuple(shape)} and {tuple(var.shape)}"
            )


def check_call(
    inputs: Inputs,
    options: Options,
    dtypes: Collection[torch.dtype],
    *,
    uniform: bool = False,
    plain: bool = False,
    projected: bool = False,
) -> None:
    """Refuse arguments that only a direct call of an operator can have.

    Such a call comes from an exported program that was changed by hand, or from hooks on the
    tensors that a compiled program saves.

    Args:
        inputs: contiguous tensors, not checked otherwise.
        options: options, not checked.
        dtypes: dtypes of x that the kernel takes.
        uniform: whether the kernel takes one norm for all sites but the input.
        plain: whether the kernel takes neither resets, peepholes, masks nor a carry site, and of
            the norms of single rows only layer norm over the cell's own groups of gates.
        projected: whether the kernel takes an LSTM's projection.

    Raises:
        RuntimeError: if a tensor has another dtype, device or shape than the kernel reads, the
            numbers in ``sizes`` are not those of a packed batch, an option is unknown, or a tensor
            that the options ask for is absent.
    """
    scopes, resets = options.scopes.split(","), inputs.reset is not None
    more = (*inputs.masks, *inputs.peepholes, inputs.reset)
    beyond = plain and any([each is not None for each in more])
    if beyond or not _is_computed(options, scopes, resets=resets, uniform=uniform, plain=plain):
        raise RuntimeError(
            f"cell, scopes, joint, carry, wants_all_c and reset must be those of a layer that the "
            f"kernel computes, got {options.cell!r}, {options.scopes!r}, {options.joint}, "
            f"{options.carry}, {options.wants_all_c} and {'some' if resets else 'none'}"
            + (", with a peephole, a mask or reset" if beyond else "")
        )
    if inputs.weight_hr is not None and not (projected and options.cell == "LSTM"):
        raise RuntimeError(f"weight_hr must be None: the kernel projects no h of {options.cell}")
    _check_dtypes(inputs, dtypes)
    check_shapes(inputs, CELL_OF_NAME[options.cell])
    _check_other_shapes(inputs, options)
    sizes = inputs.sizes.tolist()
    B = inputs.x.size(1)
    if sizes[0] != B or sizes[-1] < 0 or sorted(sizes, reverse=True) != sizes:
        raise RuntimeError(f"sizes must begin with all {B} rows and not grow, got {sizes}")
    _check_presence(inputs, options, scopes, sizes)


def _is_computed(
    options: Options, scopes: Sequence[str], *, resets: bool, uniform: bool, plain: bool
) -> bool:
    """Tell whether a kernel computes a layer with these options, as ``check_call`` describes it."""
    if options.cell not in CELL_OF_NAME or len(scopes) != 3 or not {*scopes} <= {*SCOPES}:
        return False
    kinds, last, together = {*scopes} - {"off"}, scopes[2], {*scopes[1:]} - {"off"}
    taken = options.min_rows >= 0 and not kinds.isdisjoint({"frame", "sequence"})
    sums_terms = "joint" in CELL_OF_NAME[options.cell].sites and scopes[0] == "off"
    return (
        "sequence" not in scopes[1:]
        and (not options.joint or sums_terms)
        and (last == "off" or options.has_c)
        and (not options.carry or (last != "off" and not plain))
        and (not options.wants_all_c or options.has_c)
        # after a reset rows have different ages
        and not (resets and taken)
        and not (uniform and len({kind.partition("-")[0] for kind in together}) > 1)
        and (not plain or kinds <= {"row", "frame", "sequence"})
    )


def _check_dtypes(inputs: Inputs, dtypes: Collection[torch.dtype]) -> None:
    """Check dtypes and devices, and that x and h0 have their dimensions.

    Raises:
        RuntimeError: if x has no step, or a tensor has another form than the kernel reads.
    """
    x = inputs.x
    if x.dtype not in dtypes or x.dim() != 3 or len(x) == 0 or inputs.h0.dim() != 2:
        raise RuntimeError(
            f"x must be (T, B, I) of {', '.join(map(str, dtypes))} with a step at least, and h0 "
            f"(B, H), got {tuple(x.shape)} of {x.dtype} and {tuple(inputs.h0.shape)}"
        )
    wide = torch.promote_types(x.dtype, torch.float32)
    for name, tensor in zip(Inputs._fields, inputs, strict=True):
        if tensor is None:
            continue
        dtype = x.dtype if name in ("x", "weight_ih", "weight_hh", "weight_hr") else wide
        flags = name == "reset" or "mask" in name
        dtype = torch.int64 if name == "sizes" else torch.bool if flags else dtype
        device = "cpu" if name == "sizes" else x.device.type
        if tensor.dtype != dtype or tensor.device.type != device:
            raise RuntimeError(
                f"{name} must be {dtype} on {device}, got {tensor.dtype} on {tensor.device}"
            )


def _check_other_shapes(inputs: Inputs, options: Options) -> None:
    """Check the shapes of what is neither a parameter nor a statistic.

    Raises:
        RuntimeError: if ``sizes``, a state, ``reset`` or a mask has another shape than the layer's.
    """
    (T, B), units, narrow = inputs.x.shape[:2], inputs.hidden_size, inputs.h0.size(1)
    for name, tensor, shape in (
        ("sizes", inputs.sizes, (T,)),
        ("h0", inputs.h0, (B, narrow)),
        ("c0", inputs.c0, (*options.several, B, units)),
        ("reset", inputs.reset, (T, B)),
    ):
        if tensor is not None and tensor.shape != shape:
            raise RuntimeError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
    widths = _widths_of_masks(narrow, units)
    for place, mask, wanted in zip(PLACES, inputs.masks, widths, strict=True):
        if mask is None:
            continue
        steps, rows, width = mask.shape if mask.dim() == 3 else (0, 0, 0)
        if steps not in (1, T) or rows not in (1, B) or width != wanted:
            raise RuntimeError(
                f"mask_{place} must have shape {(T, B, wanted)} with T and B or ones, got "
                f"{tuple(mask.shape)}"
            )


def _check_presence(
    inputs: Inputs, options: Options, scopes: Sequence[str], sizes: Sequence[int]
) -> None:
    """Refuse a call without a tensor that its options ask for.

    Raises:
        RuntimeError: if c0, a gamma, the cell's beta or a statistic is absent.
    """
    needed = {"c0": options.has_c, "beta_cell": scopes[2] != "off"}
    for site, scope in zip(Sites._fields, scopes, strict=True):
        needed[f"gamma_{site}"] = scope != "off"
        # a step with too few rows is normalised by the last statistic before it
        rows = sum(sizes) if scope == "sequence" else sizes[0]
        given = scope in ("frame", "sequence") and not 0 <= options.min_rows <= rows
        needed[f"mean_{site}"] = needed[f"var_{site}"] = given
    for name, asked in needed.items():
        if asked and getattr(inputs, name) is None:
            raise RuntimeError(
                f"{name} must be a tensor for {options.cell} with scopes {options.scopes!r} and "
                f"min_rows {options.min_rows}, got None"
            )


def options_of(
    cell: Cell,
    norm: Norm | None,
    min_rows: int | None,
    masks: Mapping[str, Mask] | None = None,
) -> Options:
    """Return the options of a layer; ``min_rows`` and ``masks`` are those of ``LayerCall``."""
    options = _options_without_masks(cell, norm, min_rows)
    if not masks:
        return options
    scales = {f"scale_{place}": masks[place].scale for place in PLACES if place in masks}
    return options._replace(**scales)  # type: ignore[arg-type]


@constant
def _name_of(cell: Cell) -> str:
    """Return the name of a cell in ``Options``."""
    return next(name for name, alike in CELLS.items() if listed(cell, alike))


@remembered
def _options_without_masks(cell: Cell, norm: Norm | None, min_rows: int | None) -> Options:
    specs = cell.norms(norm)
    sites = sites_of(specs)
    taken = any([spec.takes_statistics for spec in specs.values()])

    def scope(site: str) -> str:
        spec = specs.get(site)
        if spec is None:
            return "off"
        if isinstance(spec, RowNorm):
            blocks = cell.gates if field_of(site) not in CELL_SITES else (1,)
            # with two recurrent products, a site has the term of one of them, which is one block
            two = sum(cell.blocks(site, 1)) < sum(blocks)
            term = blocks if two else (sum(blocks),)
            over = {"term": term, "gate": (1,) * sum(blocks)}.get(spec.over or "", blocks)
            kind = "row" if isinstance(spec, LayerNorm) else "rms"
            return kind if over == blocks else f"{kind}-{spec.over}"
        # constants serve step by step, so the terms of all frames need not be kept
        return "frame" if min_rows is None else str(spec.scope(site))

    return Options(
        _name_of(cell),
        ",".join(map(scope, sites)),
        "joint" in specs,
        "carry" in specs,
        False,
        True,
        *Sites._make([specs[site].eps if site in specs else 1.0 for site in sites]),
        -1 if min_rows is None or not taken else min_rows,
        **NO_SCALES,
    )


def taken_of(call: LayerCall, results: Results) -> dict[str, Moments]:
    """Return the moments that a forward pass took, by site."""
    if call.min_rows is None:
        return {}
    specs = call.cell.norms(call.norm)
    batch = {site for site, spec in specs.items() if spec.takes_statistics}
    found = zip(sites_of(specs), results.moments, strict=True)
    return {site: moments for site, moments in found if site in batch}
