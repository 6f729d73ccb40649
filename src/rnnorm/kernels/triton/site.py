"""Normalisation of a term by its own statistics or given ones, in the Triton kernels.

A site's scope is ``"own"``, statistics of what a program sees; ``"given"``, those in two matrices,
one of means and one of variances; or ``"off"``.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from rnnorm.kernels.triton.tile import blocks, load, parameter, place, plus, totals, zeros


class Site(NamedTuple):
    """One site as a kernel sees it.

    Args:
        gamma: scale, ``(F,)``.
        shift: likewise.
        mean: matrix of F columns.
        var: likewise.
        row: of these for the batch's first row.
        pitch: how much further each next row's is, 0 or 1.
    """

    gamma: Any
    shift: Any
    mean: Any
    var: Any
    row: Any
    pitch: Any


@triton.jit
def term(z, x, row, col, there, width, JOINT: tl.constexpr, TILE: tl.constexpr):
    """What is normalised: z, or its sum with x."""
    values = load(z, row, col, there, width, TILE)
    if JOINT:
        values += load(x, row, col, there, width, TILE)
    return values


@triton.jit
def moments(
    z, x, start, n, units,
    GATES: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr,
    JOINT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Mean and biased variance of each of some gates, in two passes; over units they share them."""
    nothing = ()
    for _ in tl.static_range(COUNT):
        nothing = nothing + (zeros(TILE),)
    sums = nothing
    for block in range(blocks(n, units, TILE)):
        rows, cols, there = place(block, n, units, TILE)
        values = ()
        for k in tl.static_range(FIRST, FIRST + COUNT):
            col = cols + k * units
            values += (term(z, x, start + rows, col, there, GATES * units, JOINT, TILE),)
        sums = plus(sums, totals(values, there, TILE))
    means = averages(sums, n, units, TILE)
    sums = nothing
    for block in range(blocks(n, units, TILE)):
        rows, cols, there = place(block, n, units, TILE)
        values = ()
        for k in tl.static_range(COUNT):
            col = cols + (FIRST + k) * units
            z_k = term(z, x, start + rows, col, there, GATES * units, JOINT, TILE) - means[k]
            values += (z_k * z_k,)
        sums = plus(sums, totals(values, there, TILE))
    variances = averages(sums, n, units, TILE)
    pairs = ()
    for k in tl.static_range(COUNT):
        pairs += ((means[k], variances[k]),)
    return pairs


@triton.jit
def averages(sums, n, units, TILE: tl.constexpr):
    """Means of each gate, over units of all together, from sums of each."""
    COUNT: tl.constexpr = len(sums)
    means = ()
    if TILE.axis == 0:
        for k in tl.static_range(COUNT):
            means += (sums[k] / n,)
    else:
        whole = sums[0]
        for k in tl.static_range(1, COUNT):
            whole += sums[k]
        for _ in tl.static_range(COUNT):
            means += (whole / (COUNT * units),)
    return means


@triton.jit
def taken(site, col, there, width, TILE: tl.constexpr):
    """Mean and variance that a step has left in a row of the site's matrices."""
    return (
        load(site.mean, site.row, col, there, width, TILE),
        load(site.var, site.row, col, there, width, TILE),
    )


@triton.jit
def leave(site, own, col, there, width):
    """Leaves them there."""
    at = site.row.to(tl.int64) * width + col
    tl.store(site.mean + at, own[0], there)
    tl.store(site.var + at, own[1], there)


@triton.jit
def standardise(
    z, own, site, rows, col, there, width, SCOPE: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """``(z - μ) / √(v + ε)``, one over that root, and γ."""
    if SCOPE == "own":
        mean, var = own[0], own[1]
    else:
        row = site.row + site.pitch * rows
        mean = load(site.mean, row, col, there, width, TILE)
        var = load(site.var, row, col, there, width, TILE)
    inverse = tl.rsqrt(var + TILE.eps)
    return (z - mean) * inverse, inverse, parameter(site.gamma, col, col < width, TILE)


@triton.jit
def weighed(d, gamma, TILE: tl.constexpr):
    """What statistics over units sum: their γ differ, those over rows have one γ."""
    if TILE.axis == 0:
        return d
    else:
        return d * gamma


@triton.jit
def through(
    d, hat, inverse, gamma, mean_d, mean_d_hat, SCOPE: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Gradient of z from that of ``γ hat``.

    The means are those of ``weighed`` gradients, and of them times hat.
    """
    if SCOPE == "given":
        return inverse * gamma * d
    elif TILE.axis == 0:
        return inverse * gamma * (d - mean_d - hat * mean_d_hat)
    else:
        return inverse * (d * gamma - mean_d - hat * mean_d_hat)
