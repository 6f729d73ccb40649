"""Many time steps in one launch, their recurrent products included, where a layer is small.

Where statistics run over rows, a program has the same units at every step, and waits for all others
before the next: they must be on the GPU at once, which a cooperative launch makes sure of. Where
statistics run over units, a program has the same row, and needs no other.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from rnnorm.kernels.triton.site import Site
from rnnorm.kernels.triton.step import Downstream, Frames, Upstream, step_backward, step_forward
from rnnorm.kernels.triton.tile import address, counted, span


class Product(NamedTuple):
    """How a program multiplies, known when it is compiled.

    Args:
        depth: how many terms are summed at once.
        precision: of the products of float32, ``"ieee"``, ``"tf32x3"`` or ``"tf32"``.
    """

    depth: int
    precision: str


@triton.jit
def _moved(site, rows):
    """A site whose statistics are so many rows further."""
    return Site(site.gamma, site.shift, site.mean, site.var, site.row + rows, site.pitch)


@triton.jit
def _multiply(
    a, first, n, depth, matrix, z, to, units,
    GROUPS: tl.constexpr, P: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Puts a program's part of a product of n rows of a and a matrix into rows of z.

    The matrix is ``(depth, GROUPS * units)``. Where a program has units, its columns are those of
    each group; else it has a row.
    """
    wide: tl.constexpr = TILE.wide
    # a block has a power of two
    groups: tl.constexpr = 4 if GROUPS == 3 else GROUPS
    width = GROUPS * units
    each = tl.arange(0, groups * TILE.units)[None, :]
    if TILE.axis == 0:
        group, unit = each // TILE.units, tl.program_id(0) * TILE.units + each % TILE.units
        cols, there = group * units + unit, (group < GROUPS) & (unit < units)
        rows = tl.arange(0, TILE.rows)[:, None]
        sums = (rows * 0 + cols * 0).to(wide)
        for begin in range(0, depth, P.depth):
            k = begin + tl.arange(0, P.depth)
            left = address(a, first + rows, k[None, :], depth)
            # where others wrote, whom ``_wait`` has seen
            left = tl.load(left, (rows < n) & (k[None, :] < depth), 0.0, cache_modifier=".cg")
            right = matrix + k[:, None] * width + cols
            right = tl.load(right, (k[:, None] < depth) & there, 0.0)
            sums = tl.dot(left, right, sums, input_precision=P.precision, out_dtype=wide)
        tl.store(address(z, to + rows, cols, width), sums, (rows < n) & there)
    else:
        # deep where there are few columns
        deep: tl.constexpr = P.depth * 4 // groups
        row = tl.program_id(0) + tl.arange(0, 1)[:, None]
        sums = (each * 0).to(wide)
        for begin in range(0, depth, deep):
            k = begin + tl.arange(0, deep)[:, None]
            left = tl.load(address(a, first + row, k, depth), (row < n) & (k < depth), 0.0)
            right = tl.load(matrix + k * width + each, (k < depth) & (each < width), 0.0)
            sums += tl.sum(left.to(wide) * right.to(wide), 0, keep_dims=True)
        tl.store(address(z, to + row, each, width), sums, (row < n) & (each < width))


@triton.jit
def _wait(arrived, steps, TILE: tl.constexpr):
    """Until all programs whose results this one reads have done so many steps.

    A program that has a row reads its own alone.
    """
    tl.debug_barrier()
    if TILE.axis == 0:
        tl.atomic_add(arrived, 1, sem="acq_rel")
        while tl.atomic_add(arrived, 0, sem="acquire") < steps * tl.num_programs(0):
            pass
        tl.debug_barrier()


@triton.jit(do_not_specialize=[
    "first", "stop", "row", "skip", "pitch", "row_out", "skip_out", "pitch_out"
])  # fmt: skip
def forward(
    x, z, before, c, h, narrow, weight,
    gamma, shift, mean, var, gamma_out, shift_out, mean_out, var_out,
    starts, arrived, first, stop, row, skip, pitch, row_out, skip_out, pitch_out, units,
    S: tl.constexpr, TILE: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """``step.forward`` of steps that follow another, whose states have frames.

    Args, but for those of ``step.forward``:
        weight: W_h, transposed.
        starts: the first frame of every step of the call and of the one after the last, int64.
        arrived: a count of programs, int32, 0.
        first: step of these.
        stop: the step after the last of these.
        skip: how much further the statistics of the next step are.
        skip_out: likewise on the way out.
    """
    units = counted(units, TILE)
    hidden = Site(gamma, shift, mean, var, row, pitch)
    out = Site(gamma_out, shift_out, mean_out, var_out, row_out, pitch_out)
    for t in range(first, stop):
        past, earlier = t - first, tl.load(starts + t - 1)
        start, n = span(starts, t)
        if past > 0:
            _wait(arrived, past, TILE)
        _multiply(narrow, earlier, n, units, weight, z, start, units, S.gates, P, TILE)
        # a thread may have what another computed
        tl.debug_barrier()
        frames = Frames(x, z, before, start, earlier, n, units)
        here, here_out = _moved(hidden, past * skip), _moved(out, past * skip_out)
        step_forward(frames, here, here_out, c, h, narrow, S, TILE)


@triton.jit(do_not_specialize=[
    "first", "stop", "row", "skip", "pitch", "row_out", "skip_out", "pitch_out", "later", "rows"
])  # fmt: skip
def backward(
    x, z, before, c, gamma, shift, mean, var, gamma_out, shift_out, mean_out, var_out,
    output, product, carries, last, d_x, d_z, d_gamma, d_shift, d_gamma_out, d_shift_out, weight,
    starts, arrived, first, stop, row, skip, pitch, row_out, skip_out, pitch_out, later, rows,
    units, S: tl.constexpr, TILE: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """``step.backward`` of steps that follow another, the last one first.

    Args, but for those of ``step.backward`` and of ``forward``:
        carries: ``(2, rows, units)``; ``carried`` and ``carry``, a step reads the one and writes
            the other.
        weight: W_h.
        later: active rows after the last of these steps, whose product is given.
        rows: of a buffer.
    """
    units = counted(units, TILE)
    size = rows.to(tl.int64) * units
    hidden = Site(gamma, shift, mean, var, row, pitch)
    out = Site(gamma_out, shift_out, mean_out, var_out, row_out, pitch_out)
    for back in range(stop - first):
        t = stop - 1 - back
        past, earlier = t - first, tl.load(starts + t - 1)
        start, n = span(starts, t)
        if back > 0:
            _wait(arrived, back, TILE)
            after, later = span(starts, t + 1)
            _multiply(d_z, after, later, S.gates * units, weight, product, 0, units, 1, P, TILE)
            tl.debug_barrier()
        frames = Frames(x, z, before, start, earlier, n, units)
        here, here_out = _moved(hidden, past * skip), _moved(out, past * skip_out)
        carried = carries + (t + 1) % 2 * size
        carry = carries + t % 2 * size
        up = Upstream(output, product, carried, last, later)
        down = Downstream(d_x, d_z, carry, d_gamma, d_shift, d_gamma_out, d_shift_out)
        step_backward(frames, here, here_out, c, up, down, S, TILE)
