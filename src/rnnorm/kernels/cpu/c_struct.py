"""Conversion of tensors to the C struct of one layer, and the shapes of the results."""

from __future__ import annotations

from operator import attrgetter

import torch

from rnnorm.kernels.cpu.library import CELL_SITE, CELLS, SCOPES, Layer, address
from rnnorm.kernels.inputs import RESULTS, Inputs, Options, Results

#: dtypes that the kernel computes in
COMPUTED = (torch.float32, torch.float64)


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

    For layer norm the moments are each frame's mean and one over its standard deviation. Saved
    are ``W_x x``, ``W_h h``, ``c`` and, with zoneout of c, the carried c of every frame, tile
    after tile of hidden units. ``exchanged`` statistics are those of several processes.
    """
    T, B, input_size = inputs.x.shape
    H = inputs.weight_hh.size(1)
    scopes = options.by_site
    gates, blocks, has_c = options.gates, len(options.gate_blocks), options.has_c
    shapes: list[tuple[int, ...]] = [(T, B, H), (B, H), (B, H) if has_c else (0,)]
    for scope, wide, parts in zip(scopes, (gates, gates, 1), (blocks, blocks, 1), strict=True):
        shape: tuple[int, ...] = (0,)
        if scope == "row":
            shape = (parts, T * B) if save else (0,)
        elif scope != "off" and options.min_rows >= 0:
            shape = (1 if scope == "sequence" else T, wide * H)
        shapes += (shape, shape)
    summed = options.joint or scopes.hidden == "off"
    fused = not options.separate and scopes.input == "off" and summed
    # exchanged statistics of W_x x are taken before the first step
    again = recomputes(input_size, H) and not (exchanged and scopes.input == "frame")
    keeps_x = scopes.input == "sequence" or (save and not fused and not again)
    shapes.append((T * B, gates * padded_units(H)) if keeps_x else (0,))
    shapes.append((T * B, gates * padded_units(H)) if save else (0,))
    shapes.append((T * B, padded_units(H)) if save and has_c else (0,))
    zoned = inputs.mask_zoneout_c is not None
    shapes.append((T * B, padded_units(H)) if save and zoned else (0,))
    return shapes


# the tensors that have a field of their own in the struct
_INPUTS = [name for name in Inputs._fields if hasattr(Layer, name)]
_RESULTS = [name for name in RESULTS if hasattr(Layer, name)]
_FIELDS = (*_INPUTS, *_RESULTS)
_single_inputs, _single_results = attrgetter(*_INPUTS), attrgetter(*_RESULTS)


def describe(inputs: Inputs, options: Options, results: Results) -> Layer:
    """Fill the struct of a layer, without the gradients.

    Args:
        inputs: inputs of both passes.
        options: options of both passes.
        results: results of the forward pass, see ``forward_shapes``.
    """
    T, B, input_size = inputs.x.shape
    H = inputs.weight_hh.size(1)
    layer = Layer()
    layer.cell = CELLS.index(options.cell)
    layer.is_double = inputs.x.dtype == torch.float64
    layer.T, layer.B, layer.I, layer.H = T, B, input_size, H
    layer.min_rows, layer.joint, layer.eps = options.min_rows, options.joint, options.eps
    layer.recompute = recomputes(input_size, H)
    tensors = (*_single_inputs(inputs), *_single_results(results))
    for field, tensor in zip(_FIELDS, tensors, strict=True):
        if tensor is not None:
            setattr(layer, field, tensor.data_ptr())
    for k, weight in enumerate(inputs.peepholes):
        if weight is not None:
            layer.peephole[k] = weight.data_ptr()
    for site, scope, gamma, (taken_mean, taken_var), (mean, var) in zip(
        layer.site,
        options.by_site,
        inputs.gammas,
        results.moments,
        inputs.constants,
        strict=True,
    ):
        if scope == "off":
            continue
        site.scope = SCOPES.index(scope)
        site.gamma = address(gamma)
        site.mean, site.var = taken_mean.data_ptr(), taken_var.data_ptr()
        if mean is not None:
            steps, rows, features = mean.shape
            site.constant_mean, site.constant_var = address(mean), address(var)
            site.constant_last, site.constant_step = steps - 1, rows * features
            site.constant_row = features if rows > 1 else 0
    if inputs.beta_cell is not None:
        layer.site[CELL_SITE].beta = inputs.beta_cell.data_ptr()
    for k, drawn in enumerate(inputs.masks):
        if drawn is not None:
            mask, (steps, rows, features) = layer.mask[k], drawn.shape
            mask.drawn, mask.scale = address(drawn), options.scales[k]
            mask.step = rows * features if steps > 1 else 0
            mask.row = features if rows > 1 else 0
    return layer
