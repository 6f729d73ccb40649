"""Normalisation of a term by its own statistics or given ones, in the Triton kernels.

A site's scope is ``"own"``, statistics of the values that a program sees; ``"given"``, statistics
in a matrix of means and one of variances; or ``"off"``.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from rnnorm.kernels.triton.tile import blocks, load, locate, parameter, plus, totals, zeros


class Site(NamedTuple):
    """One site as a kernel sees it.

    Args:
        gamma: scale, ``(F,)``.
        shift: shift, ``(F,)``.
        mean: matrix of means, with F columns.
        var: matrix of variances, with F columns.
        row: row of the two matrices for the batch's first row.
        pitch: offset of this row from one row of the batch to the next, 0 or 1.
    """

    gamma: Any
    shift: Any
    mean: Any
    var: Any
    row: Any
    pitch: Any


class Standardised(NamedTuple):
    """A normalised value as its parts.

    Args:
        hat: ``(z - μ) / √(v + ε)``.
        inverse: one over the root.
        gamma: scale.
    """

    hat: Any
    inverse: Any
    gamma: Any


@triton.jit
def term(z, x, row, col, valid, width, JOINT: tl.constexpr, TILE: tl.constexpr):
    """Load the values to be normalised: z, or its sum with x."""
    values = load(z, row, col, valid, width, TILE)
    if JOINT:
        values += load(x, row, col, valid, width, TILE)
    return values


@triton.jit
def moments(
    z, x, start, n, units,
    GATES: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr,
    JOINT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Compute each gate's mean and biased variance in two passes; over units gates share both."""
    nothing = ()
    for _ in tl.static_range(COUNT):
        nothing = nothing + (zeros(TILE),)
    sums = nothing
    for block in range(blocks(n, units, TILE)):
        rows, cols, valid = locate(block, n, units, TILE)
        values = ()
        for k in tl.static_range(FIRST, FIRST + COUNT):
            col = cols + k * units
            values += (term(z, x, start + rows, col, valid, GATES * units, JOINT, TILE),)
        sums = plus(sums, totals(values, valid, TILE))
    means = averages(sums, n, units, TILE)
    sums = nothing
    for block in range(blocks(n, units, TILE)):
        rows, cols, valid = locate(block, n, units, TILE)
        values = ()
        for k in tl.static_range(COUNT):
            col = cols + (FIRST + k) * units
            z_k = term(z, x, start + rows, col, valid, GATES * units, JOINT, TILE) - means[k]
            values += (z_k * z_k,)
        sums = plus(sums, totals(values, valid, TILE))
    variances = averages(sums, n, units, TILE)
    pairs = ()
    for k in tl.static_range(COUNT):
        pairs += ((means[k], variances[k]),)
    return pairs


@triton.jit
def averages(sums, n, units, TILE: tl.constexpr):
    """Compute the mean of each gate from its sum; over units the mean of all gates together."""
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
def load_statistics(site, col, valid, width, TILE: tl.constexpr):
    """Load the mean and variance that a step stored in a row of the site's matrices."""
    return (
        load(site.mean, site.row, col, valid, width, TILE),
        load(site.var, site.row, col, valid, width, TILE),
    )


@triton.jit
def store_statistics(site, own, col, valid, width):
    """Store a step's mean and variance in a row of the site's matrices."""
    at = site.row.to(tl.int64) * width + col
    tl.store(site.mean + at, own[0], valid)
    tl.store(site.var + at, own[1], valid)


@triton.jit
def standardise(
    z, own, site, rows, col, valid, width, SCOPE: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Standardise values by their own or given statistics."""
    if SCOPE == "own":
        mean, var = own[0], own[1]
    else:
        row = site.row + site.pitch * rows
        mean = load(site.mean, row, col, valid, width, TILE)
        var = load(site.var, row, col, valid, width, TILE)
    inverse = tl.rsqrt(var + TILE.eps)
    gamma = parameter(site.gamma, col, col < width, TILE)
    return Standardised((z - mean) * inverse, inverse, gamma)


@triton.jit
def weigh(d, gamma, TILE: tl.constexpr):
    """Return the gradient to be summed; weighted by γ for layer norm."""
    if TILE.axis == 0:
        return d
    else:
        return d * gamma


@triton.jit
def backpropagate(d, part, mean_d, mean_d_hat, SCOPE: tl.constexpr, TILE: tl.constexpr):
    """Return the gradient of z from d, that of ``γ hat``.

    ``mean_d`` is the mean of ``weigh(d)``, ``mean_d_hat`` that of ``weigh(d) * hat``.
    """
    if SCOPE == "given":
        return part.inverse * part.gamma * d
    elif TILE.axis == 0:
        return part.inverse * part.gamma * (d - mean_d - part.hat * mean_d_hat)
    else:
        return part.inverse * (d * part.gamma - mean_d - part.hat * mean_d_hat)
