"""The input terms of all frames, normalised and shifted ahead of the loop over steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
import triton
from torch import Tensor

from rnnorm.kernels.triton import columns
from rnnorm.kernels.triton.plan import Plan, Source
from rnnorm.kernels.triton.tile_sizes import choose_tile, launch_options
from rnnorm.norm.moments import Moments

# most segments on the second axis of a grid
_MOST = 65535
# columns of a program
_COLUMNS = 32


def finish(z: Tensor, plan: Plan, gamma: Tensor | None, taken: Moments) -> Tensor:
    """Normalise and shift raw terms ``(N, F)``; statistics of the rows are stored in ``taken``."""
    shift = plan.shift_input
    if gamma is None:
        return z if shift is None else z + shift
    if plan.row_sites.input:
        return _join([y for y, *_ in _by_row(z, plan, gamma)])
    y = torch.empty_like(z)
    for source, starts, _ in _segments(plan, taken):
        grid, how = _launch(z, starts, plan)
        columns.forward[grid](
            z, y, gamma, gamma if shift is None else shift, source.mean, source.var, starts,
            source.row, source.skip, source.pitch, z.size(1),
            SCOPE=source.scope, SHIFTED=shift is not None, **how,
        )  # fmt: skip
    return y


def undo(
    d_y: Tensor, z: Tensor, plan: Plan, gamma: Tensor | None, taken: Moments
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return the gradients of raw terms, γ and shift from that of the finished terms."""
    if gamma is None:
        return d_y.to(z.dtype), None, d_y.sum(0, dtype=plan.wide)
    if plan.row_sites.input:
        pieces = []
        for (start, stop), (_, wide, mean, inverse, scale) in zip(
            plan.blocks("input"), _by_row(z, plan, gamma), strict=True
        ):
            d = d_y[:, start:stop].to(plan.wide).contiguous()
            if mean is None:
                pieces.append(_undo_root_mean_square(d, wide, inverse, scale))
                continue
            pieces.append(
                torch.ops.aten.native_layer_norm_backward(
                    d, wide, wide.shape[1:], mean, inverse, scale, scale, [True, True, True]
                )
            )
        d_z, d_gamma, d_shift = map(_join, zip(*pieces, strict=True))
        return d_z.to(z.dtype), d_gamma, d_shift
    d_z = torch.empty_like(z)
    sums = d_y.new_empty(2, max(plan.T, 1), z.size(1), dtype=plan.wide)
    count = 0
    for source, starts, first in _segments(plan, taken):
        grid, how = _launch(z, starts, plan)
        count = first + len(starts) - 1
        columns.backward[grid](
            z, d_y, d_z, gamma, source.mean, source.var, sums[0, first:], sums[1, first:], starts,
            source.row, source.skip, source.pitch, z.size(1), SCOPE=source.scope, **how,
        )  # fmt: skip
    d_gamma, d_shift = (each[:count].sum(0) for each in sums)
    return d_z, d_gamma, d_shift


def _join(parts: Sequence[Tensor]) -> Tensor:
    """Return the columns of all parts, without a copy where there is one part."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), -1)


def _by_row(z: Tensor, plan: Plan, gamma: Tensor) -> Iterator[tuple[Any, ...]]:
    """Yield the norm of each block of rows: result, input, mean, one over the deviation, γ.

    RMS norm has no mean, and one over the root mean square.
    """
    shift, eps = plan.shift_input, plan.options.eps.input
    for start, stop in plan.blocks("input"):
        wide, scale = z[:, start:stop].to(plan.wide).contiguous(), gamma[start:stop]
        offset = None if shift is None else shift[start:stop]
        if plan.scopes.input.startswith("rms"):
            inverse = torch.rsqrt(wide.square().mean(1, keepdim=True) + eps)
            y = wide * inverse * scale
            yield y if offset is None else y.add_(offset), wide, None, inverse, scale
            continue
        y, mean, inverse = torch.native_layer_norm(wide, wide.shape[1:], scale, offset, eps)
        yield y, wide, mean, inverse, scale


def _undo_root_mean_square(
    d: Tensor, z: Tensor, inverse: Tensor, gamma: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of z, γ and shift from that of ``z * inverse * gamma + shift``."""
    hat, inward = z * inverse, d * gamma
    d_z = inverse * (inward - hat * (inward * hat).mean(1, keepdim=True))
    return d_z, (d * hat).sum(0), d.sum(0)


def _segments(plan: Plan, taken: Moments) -> Iterator[tuple[Source, Tensor, int]]:
    """Yield groups of equal segments: their statistics, start offsets and first index."""
    if plan.scopes.input == "sequence":
        ends = torch.arange(2, device=taken[0].device) * plan.frames
        yield plan.source("input", 0, taken), ends, 0
        return
    for first, stop in pairwise(sorted({0, plan.taking, *plan.kept("input"), plan.T})):
        for k in range(first, stop, _MOST):
            yield plan.source("input", k, taken), plan.first_frames[k : min(k + _MOST, stop) + 1], k


def _launch(z: Tensor, starts: Tensor, plan: Plan) -> tuple[tuple[int, int], dict[str, Any]]:
    """Return the grid and the compile options for the segments of z that ``starts`` gives."""
    rows = plan.B if len(starts) > 2 else plan.frames
    how = choose_tile(False, rows, z.size(1), plan.wide, plan.options.eps.input)
    how = how._replace(units=_COLUMNS)
    grid = (triton.cdiv(z.size(1), _COLUMNS), len(starts) - 1)
    return grid, {"TILE": how, **launch_options(how)}
