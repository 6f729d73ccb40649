"""Batch normalisation of the input terms, which are known ahead of the loop over steps.

A segment is the frames of one step, or all frames; a program computes some columns of a segment.
"""

import triton
import triton.language as tl

from rnnorm.kernels.triton.site import (
    Site,
    backpropagate,
    load_statistics,
    moments,
    standardise,
    store_statistics,
)
from rnnorm.kernels.triton.tile import (
    address,
    blocks,
    hint_multiple,
    load,
    locate,
    parameter,
    span,
    total,
    zeros,
)


@triton.jit(do_not_specialize=["row", "skip", "pitch"])
def forward(
    z, y, gamma, shift, mean, var, starts, row, skip, pitch, width,
    SCOPE: tl.constexpr, SHIFTED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Normalise and shift the raw terms z into y.

    Args:
        z: raw terms, ``(N, width)``.
        y: finished terms, ``(N, width)``.
        gamma: scale, ``(width,)``.
        shift: shift, ``(width,)``.
        mean: matrix of means, with ``width`` columns.
        var: matrix of variances, with ``width`` columns.
        starts: the first frame of every segment and of the one after the last, int64.
        row: row of the statistics for the first segment's first row.
        skip: offset of this row from one segment to the next.
        pitch: offset of the statistics from one row of a segment to the next, 0 or 1.
        width: columns.
        SCOPE: scope of the site, "own" or "given".
        SHIFTED: whether there is a shift.
        TILE: how a program covers its part.
    """
    k, width = tl.program_id(1), hint_multiple(width, TILE)
    start, n = span(starts, k)
    site = Site(gamma, shift, mean, var, row + k * skip, pitch)
    own = ()
    if SCOPE == "own":
        own = moments(z, z, start, n, width, 1, 0, 1, False, TILE)[0]
        own_cols = locate(0, n, width, TILE)[1]
        store_statistics(site, own, own_cols, own_cols < width, width)
    for block in range(blocks(n, width, TILE)):
        rows, cols, valid = locate(block, n, width, TILE)
        values = load(z, start + rows, cols, valid, width, TILE)
        part = standardise(values, own, site, rows, cols, valid, width, SCOPE, TILE)
        values = part.hat * part.gamma
        if SHIFTED:
            values += parameter(shift, cols, cols < width, TILE)
        tl.store(address(y, start + rows, cols, width), values, valid)


@triton.jit(do_not_specialize=["row", "skip", "pitch"])
def backward(
    z, d_y, d_z, gamma, mean, var, d_gamma, d_shift, starts, row, skip, pitch, width,
    SCOPE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of z, and a row of those of γ and the shift for each segment."""
    k, width = tl.program_id(1), hint_multiple(width, TILE)
    start, n = span(starts, k)
    site = Site(gamma, gamma, mean, var, row + k * skip, pitch)
    own_cols = locate(0, n, width, TILE)[1]
    own = ()
    if SCOPE == "own":
        own = load_statistics(site, own_cols, own_cols < width, width, TILE)
    sum_d, sum_d_hat = zeros(TILE), zeros(TILE)
    for block in range(blocks(n, width, TILE)):
        rows, cols, valid = locate(block, n, width, TILE)
        values = load(z, start + rows, cols, valid, width, TILE)
        part = standardise(values, own, site, rows, cols, valid, width, SCOPE, TILE)
        d = load(d_y, start + rows, cols, valid, width, TILE)
        sum_d += total(d, valid, TILE)
        sum_d_hat += total(d * part.hat, valid, TILE)
    to = k.to(tl.int64) * width + own_cols
    tl.store(d_shift + to, sum_d, own_cols < width)
    tl.store(d_gamma + to, sum_d_hat, own_cols < width)
    for block in range(blocks(n, width, TILE)):
        rows, cols, valid = locate(block, n, width, TILE)
        values = load(z, start + rows, cols, valid, width, TILE)
        part = standardise(values, own, site, rows, cols, valid, width, SCOPE, TILE)
        d = load(d_y, start + rows, cols, valid, width, TILE)
        d = backpropagate(d, part, sum_d / n, sum_d_hat / n, SCOPE, TILE)
        tl.store(address(d_z, start + rows, cols, width), d, valid)
