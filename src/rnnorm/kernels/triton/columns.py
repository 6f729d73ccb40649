"""Batch normalisation of the input terms, which are known ahead of the loop over steps.

A segment is the frames of one step, or all of them; a program has some columns of one segment.
"""

import triton
import triton.language as tl

from rnnorm.kernels.triton.site import Site, leave, moments, standardise, taken, through
from rnnorm.kernels.triton.tile import (
    address,
    blocks,
    counted,
    load,
    parameter,
    place,
    span,
    total,
    zeros,
)


@triton.jit(do_not_specialize=["row", "skip", "pitch"])
def forward(
    z, y, gamma, shift, mean, var, starts, row, skip, pitch, width,
    SCOPE: tl.constexpr, SHIFTED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Computes the finished terms y of the raw ones.

    Args:
        z: ``(N, width)``.
        y: likewise.
        gamma: ``(width,)``.
        shift: likewise.
        mean: matrix of statistics, of ``width`` columns.
        var: likewise.
        starts: the first frame of every segment and of the one after the last, int64.
        row: of the statistics for the first segment's first row.
        skip: how much further each next segment's are.
        pitch: how much further each next row's are, 0 or 1.
        width: columns.
        SCOPE: of the site, "own" or "given".
        SHIFTED: whether there is a shift.
        TILE: how a program goes.
    """
    k, width = tl.program_id(1), counted(width, TILE)
    start, n = span(starts, k)
    site = Site(gamma, shift, mean, var, row + k * skip, pitch)
    own = ()
    if SCOPE == "own":
        own = moments(z, z, start, n, width, 1, 0, 1, False, TILE)[0]
        mine = place(0, n, width, TILE)[1]
        leave(site, own, mine, mine < width, width)
    for block in range(blocks(n, width, TILE)):
        rows, cols, there = place(block, n, width, TILE)
        values = load(z, start + rows, cols, there, width, TILE)
        part = standardise(values, own, site, rows, cols, there, width, SCOPE, TILE)
        values = part[0] * part[2]
        if SHIFTED:
            values += parameter(shift, cols, cols < width, TILE)
        tl.store(address(y, start + rows, cols, width), values, there)


@triton.jit(do_not_specialize=["row", "skip", "pitch"])
def backward(
    z, d_y, d_z, gamma, mean, var, d_gamma, d_shift, starts, row, skip, pitch, width,
    SCOPE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Computes the gradients of z, and those of γ and the shift, a row for each segment."""
    k, width = tl.program_id(1), counted(width, TILE)
    start, n = span(starts, k)
    site = Site(gamma, gamma, mean, var, row + k * skip, pitch)
    mine = place(0, n, width, TILE)[1]
    own = ()
    if SCOPE == "own":
        own = taken(site, mine, mine < width, width, TILE)
    sum_d, sum_d_hat = zeros(TILE), zeros(TILE)
    for block in range(blocks(n, width, TILE)):
        rows, cols, there = place(block, n, width, TILE)
        values = load(z, start + rows, cols, there, width, TILE)
        part = standardise(values, own, site, rows, cols, there, width, SCOPE, TILE)
        d = load(d_y, start + rows, cols, there, width, TILE)
        sum_d += total(d, there, TILE)
        sum_d_hat += total(d * part[0], there, TILE)
    to = k.to(tl.int64) * width + mine
    tl.store(d_shift + to, sum_d, mine < width)
    tl.store(d_gamma + to, sum_d_hat, mine < width)
    for block in range(blocks(n, width, TILE)):
        rows, cols, there = place(block, n, width, TILE)
        values = load(z, start + rows, cols, there, width, TILE)
        part = standardise(values, own, site, rows, cols, there, width, SCOPE, TILE)
        d = load(d_y, start + rows, cols, there, width, TILE)
        d = through(d, part[0], part[1], part[2], sum_d / n, sum_d_hat / n, SCOPE, TILE)
        tl.store(address(d_z, start + rows, cols, width), d, there)
