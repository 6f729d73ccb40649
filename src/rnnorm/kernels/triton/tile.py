"""What the Triton kernels are made of: tiles of rows and units, and sums over one of the two.

Batch statistics run over rows: a program owns some units for all rows, and goes through them in
blocks. Layer statistics run over units: a program owns a row, and goes through its units. The
kernels are written once for both. A tile is ``(rows, units)``, a sum keeps its axis.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Tile(NamedTuple):
    """How a program goes through its part, known when it is compiled.

    Args:
        axis: over which statistics run, 0 for rows and 1 for units.
        one: whether one block holds the part.
        rows: of a block, a power of two.
        units: likewise.
        multiple: a power of two that divides the units, so many of which are read at once.
        wide: the type that everything is computed in.
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
def counted(units, TILE: tl.constexpr):
    """The number of units, which the compiler then knows to be a multiple."""
    return units // TILE.multiple * TILE.multiple


@triton.jit
def blocks(n, units, TILE: tl.constexpr):
    """How many blocks a program goes through, of n rows and so many units."""
    if TILE.one:
        return 1
    elif TILE.axis == 0:
        return tl.cdiv(n, TILE.rows)
    else:
        return tl.cdiv(units, TILE.units)


@triton.jit
def place(block, n, units, TILE: tl.constexpr):
    """Rows ``(rows, 1)`` and units ``(1, units)`` of a block, and whether they are there."""
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
    """The first frame of a step or segment, and how many it has."""
    start = tl.load(starts + k)
    return start, (tl.load(starts + k + 1) - start).to(tl.int32)


@triton.jit
def address(matrix, row, col, width):
    """Of entries of a matrix of so many columns, which may have more than 2^31."""
    return matrix + row.to(tl.int64) * width + col


@triton.jit
def load(matrix, row, col, there, width, TILE: tl.constexpr):
    """Entries of a matrix, 0 where they are not there."""
    return tl.load(address(matrix, row, col, width), there, 0.0).to(TILE.wide)


@triton.jit
def parameter(vector, col, there, TILE: tl.constexpr):
    """Entries of a vector, 0 where they are not there."""
    return tl.load(vector + col, there, 0.0).to(TILE.wide)


@triton.jit
def zeros(TILE: tl.constexpr):
    """A sum of nothing."""
    if TILE.axis == 0:
        return (tl.arange(0, TILE.units)[None, :] * 0).to(TILE.wide)
    else:
        return (tl.arange(0, TILE.rows)[:, None] * 0).to(TILE.wide)


@triton.jit
def total(values, there, TILE: tl.constexpr):
    """Sum of what is there of a tile, along the axis of statistics."""
    return tl.sum(tl.where(there, values, 0.0), TILE.axis, keep_dims=True)


@triton.jit
def totals(values, there, TILE: tl.constexpr):
    """``total`` of each of one to four tiles, by one reduction."""
    COUNT: tl.constexpr = len(values)
    if COUNT == 1:
        return (total(values[0], there, TILE),)
    else:
        tiles = tl.join(
            tl.join(values[0], values[1]), tl.join(values[COUNT - 2], values[COUNT - 1])
        )
        kept = tl.where(there[:, :, None, None], tiles, 0.0)
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
    """Sums of each of a tuple and of another."""
    sums = ()
    for k in tl.static_range(len(some)):
        sums = sums + (some[k] + others[k],)
    return sums


@triton.jit
def accumulate(sums, row, col, there, width, values):
    """Adds to entries of a matrix that no other program touches."""
    at = address(sums, row, col, width)
    tl.store(at, tl.load(at, there, 0.0) + values, there)


@triton.jit
def tanh(x):
    """By exp, as the interpreter has no other: to its absolute error."""
    e = tl.exp(-2 * tl.abs(x))
    y = (1 - e) / (1 + e)
    return tl.where(x < 0, -y, y)
