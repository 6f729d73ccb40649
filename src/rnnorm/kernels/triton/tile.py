"""Tiles of rows and units, and sums over one of the two axes: the parts of the Triton kernels.

Batch statistics run over rows: a program owns some units, and goes through all rows in blocks.
Layer statistics run over units: a program owns a row, and goes through all units in blocks. The
kernels are written once for both. A tile is ``(rows, units)``, a sum keeps its axis.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Tile(NamedTuple):
    """How a program covers its part, known when it is compiled.

    Args:
        axis: the axis that statistics run over, 0 for rows and 1 for units.
        one: whether one block covers the part.
        rows: rows of a block, a power of two.
        units: units of a block, a power of two.
        multiple: a power of two that divides the units, and the number of units read at once.
        wide: the type that all values are computed in.
        eps: added to the variance.
    """

    axis: int
    one: bool
    rows: int
    units: int
    multiple: int
    wide: Any
    eps: float


@triton.jit
def hint_multiple(units, TILE: tl.constexpr):
    """Return the number of units in a form that tells the compiler a divisor of it."""
    return units // TILE.multiple * TILE.multiple


@triton.jit
def blocks(n, units, TILE: tl.constexpr):
    """Count the blocks in which a program covers its part of n rows and ``units`` units."""
    if TILE.one:
        return 1
    elif TILE.axis == 0:
        return tl.cdiv(n, TILE.rows)
    else:
        return tl.cdiv(units, TILE.units)


@triton.jit
def locate(block, n, units, TILE: tl.constexpr):
    """Return rows ``(rows, 1)`` and units ``(1, units)`` of a block, and which entries exist."""
    rows = tl.arange(0, TILE.rows)[:, None]
    cols = tl.arange(0, TILE.units)[None, :]
    if TILE.axis == 0:
        rows += block * TILE.rows
        cols += tl.program_id(0) * TILE.units
    else:
        rows += tl.program_id(0) * TILE.rows
        cols += block * TILE.units
    return rows, cols, (rows < n) & (cols < units)


@triton.jit
def span(starts, k):
    """Return the first frame and the number of frames of a step or segment."""
    start = tl.load(starts + k)
    return start, (tl.load(starts + k + 1) - start).to(tl.int32)


@triton.jit
def address(matrix, row, col, width):
    """Return the address of entries of a matrix, which may have more than 2^31 entries."""
    return matrix + row.to(tl.int64) * width + col


@triton.jit
def load(matrix, row, col, valid, width, TILE: tl.constexpr):
    """Load entries of a matrix, 0 where they are not valid."""
    return tl.load(address(matrix, row, col, width), valid, 0.0).to(TILE.wide)


@triton.jit
def parameter(vector, col, valid, TILE: tl.constexpr):
    """Load entries of a vector, 0 where they are not valid."""
    return tl.load(vector + col, valid, 0.0).to(TILE.wide)


@triton.jit
def zeros(TILE: tl.constexpr):
    """Return a zero accumulator."""
    if TILE.axis == 0:
        return (tl.arange(0, TILE.units)[None, :] * 0).to(TILE.wide)
    else:
        return (tl.arange(0, TILE.rows)[:, None] * 0).to(TILE.wide)


@triton.jit
def total(values, valid, TILE: tl.constexpr):
    """Sum the valid entries of a tile along the axis of statistics."""
    return tl.sum(tl.where(valid, values, 0.0), TILE.axis, keep_dims=True)


@triton.jit
def totals(values, valid, TILE: tl.constexpr):
    """Return the ``total`` of each of one to four tiles, by one reduction."""
    COUNT: tl.constexpr = len(values)
    if COUNT == 1:
        return (total(values[0], valid, TILE),)
    else:
        tiles = tl.join(
            tl.join(values[0], values[1]), tl.join(values[COUNT - 2], values[COUNT - 1])
        )
        kept = tl.where(valid[:, :, None, None], tiles, 0.0)
        first, last = tl.split(tl.sum(kept, TILE.axis, keep_dims=True))
        a, b = tl.split(first)
        c, d = tl.split(last)
        if COUNT == 2:
            return a, b
        elif COUNT == 3:
            return a, b, d
        else:
            return a, b, c, d


@triton.jit
def plus(some, others):
    """Add two tuples element by element."""
    sums = ()
    for k in tl.static_range(len(some)):
        sums = sums + (some[k] + others[k],)
    return sums


@triton.jit
def accumulate(sums, row, col, valid, width, values):
    """Add to entries of a matrix that no other program touches."""
    at = address(sums, row, col, width)
    tl.store(at, tl.load(at, valid, 0.0) + values, valid)


@triton.jit
def tanh(x):
    """Compute tanh by exp, to the absolute error of exp; the interpreter has no tanh."""
    e = tl.exp(-2 * tl.abs(x))
    y = (1 - e) / (1 + e)
    return tl.where(x < 0, -y, y)


@triton.jit
def log1p(x):
    """Compute log(1 + x), exact also where x is small; the interpreter has no log1p."""
    u = 1 + x
    # the rounding of u cancels in the quotient
    return tl.where((u == 1) | (x == float("inf")), x, tl.log(u) * (x / (u - 1)))


@triton.jit
def number(value: tl.constexpr, TILE: tl.constexpr):
    """Return a number as a tile of one row and one unit."""
    return tl.full((1, 1), value, TILE.wide)
