"""From tensors to the C struct of one layer, and the shapes of what a pass returns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rnnorm.kernels.cpu.library import CELLS, SCOPES, Layer, address
from rnnorm.kernels.inputs import MOMENTS, RESULTS, SAVED, Inputs, Options

#: what the kernel computes in
COMPUTED = (torch.float32, torch.float64)


def recomputes(input_size: int, hidden_size: int) -> bool:
    """Whether backward computes ``W_x x`` again: at most 7 % more arithmetic, 40 % less memory."""
    return input_size <= hidden_size // 4


def padded_units(hidden_size: int) -> int:
    """Hidden units with those that fill the last tile, of 4, 8 or 16."""
    rest = hidden_size % 16
    return hidden_size - rest + next(width for width in (0, 4, 8, 16) if rest <= width)


def forward_shapes(
    inputs: Inputs, options: Options, save: bool, exchanged: bool = False
) -> list[tuple[int, ...]]:
    """Shapes of output, h_n, c_n, three sites' mean and variance, and the saved tensors.

    Of layer norm these are each frame's mean and one over its standard deviation. Saved are
    ``W_x x``, ``W_h h``, ``c`` and, where it is zoned out, what is carried of it, of every frame,
    tile after tile of hidden units. What is absent has no elements. ``exchanged`` statistics are
    those of several processes.
    """
    T, B, input_size = inputs.x.shape
    H = inputs.weight_hh.size(1)
    scopes = options.scopes.split(",")
    gates, blocks, has_c = options.gates, options.blocks, options.has_c
    shapes: list[tuple[int, ...]] = [(T, B, H), (B, H), (B, H) if has_c else (0,)]
    for scope, wide, parts in zip(scopes, (gates, gates, 1), (blocks, blocks, 1), strict=True):
        shape: tuple[int, ...] = (0,)
        if scope == "row":
            shape = (parts, T * B) if save else (0,)
        elif scope != "off" and options.min_rows >= 0:
            shape = (1 if scope == "sequence" else T, wide * H)
        shapes += (shape, shape)
    fused = options.cell != "GRU" and scopes[0] == "off" and (options.joint or scopes[1] == "off")
    # exchanged statistics of W_x x are taken before the first step
    again = recomputes(input_size, H) and not (exchanged and scopes[0] == "frame")
    keeps_x = scopes[0] == "sequence" or (save and not fused and not again)
    shapes.append((T * B, gates * padded_units(H)) if keeps_x else (0,))
    shapes.append((T * B, gates * padded_units(H)) if save else (0,))
    shapes.append((T * B, padded_units(H)) if save and has_c else (0,))
    zoned = inputs.mask_zoneout_c is not None
    shapes.append((T * B, padded_units(H)) if save and zoned else (0,))
    return shapes


_TENSORS = (*Inputs._fields[:8], *RESULTS[:3], *RESULTS[SAVED])


def describe(inputs: Inputs, options: Options, results: Sequence[Tensor]) -> Layer:
    """Fills the struct, without the gradients.

    Args:
        inputs: of both passes.
        options: of both passes.
        results: the forward pass's, see ``forward_shapes``.
    """
    T, B, input_size = inputs.x.shape
    H = inputs.weight_hh.size(1)
    layer = Layer()
    layer.cell = CELLS.index(options.cell)
    layer.is_double = inputs.x.dtype == torch.float64
    layer.T, layer.B, layer.I, layer.H = T, B, input_size, H
    layer.min_rows, layer.joint, layer.eps = options.min_rows, options.joint, options.eps
    layer.recompute = recomputes(input_size, H)
    for name, tensor in zip(_TENSORS, (*inputs[:8], *results[:3], *results[SAVED]), strict=True):
        if tensor is not None:
            setattr(layer, name, tensor.data_ptr())
    for k, weight in enumerate(inputs.peepholes):
        if weight is not None:
            layer.peephole[k] = weight.data_ptr()
    moments, gammas, constants = results[MOMENTS], inputs.gammas, inputs.constants
    for k, scope in enumerate(options.scopes.split(",")):
        if scope == "off":
            continue
        site = layer.site[k]
        site.scope = SCOPES.index(scope)
        site.gamma = address(gammas[k])
        site.mean, site.var = moments[2 * k].data_ptr(), moments[2 * k + 1].data_ptr()
        mean, var = constants[2 * k : 2 * k + 2]
        if mean is not None:
            steps, rows, features = mean.shape
            site.constant_mean, site.constant_var = address(mean), address(var)
            site.constant_last, site.constant_step = steps - 1, rows * features
            site.constant_row = features if rows > 1 else 0
    if inputs.beta_cell is not None:
        layer.site[2].beta = inputs.beta_cell.data_ptr()
    for k, drawn in enumerate(inputs.masks):
        if drawn is not None:
            mask, (steps, rows, features) = layer.mask[k], drawn.shape
            mask.drawn, mask.scale = address(drawn), options.scales[k]
            mask.step = rows * features if steps > 1 else 0
            mask.row = features if rows > 1 else 0
    return layer
