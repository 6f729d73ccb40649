"""Many time steps in one launch, their recurrent products included, where a layer is small.

Where statistics run over rows, a program computes the same units at every step, and waits for all
other programs before the next step: all must be on the GPU at once, which a cooperative launch
ensures. Where statistics run over units, a program computes one row, and waits for no other.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from rnnorm.kernels.triton.block import Frames, Upstream
from rnnorm.kernels.triton.site import Site
from rnnorm.kernels.triton.step import Downstream, step_backward, step_forward
from rnnorm.kernels.triton.tile import address, hint_multiple, load, locate, parameter, span


class Product(NamedTuple):
    """How a program multiplies, known when it is compiled.

    Args:
        depth: how many terms are summed at once.
        precision: precision of the products of float32, ``"ieee"``, ``"tf32x3"`` or ``"tf32"``.
    """

    depth: int
    precision: str


@triton.jit
def _advance_site(site, rows):
    """Return the site with its row of statistics moved on by ``rows``."""
    return Site(site.gamma, site.shift, site.mean, site.var, site.row + rows, site.pitch)


@triton.jit
def _multiply(
    a, first, n, depth, matrix, z, to, units,
    GROUPS: tl.constexpr, P: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Store a program's part of the product of n rows of ``a`` and a matrix in rows of z.

    The matrix is ``(depth, GROUPS * units)``. A program that computes units has their columns in
    each group; any other has one row.
    """
    wide: tl.constexpr = TILE.wide
    # a block needs a power of two
    groups: tl.constexpr = 4 if GROUPS == 3 else GROUPS
    width = GROUPS * units
    each = tl.arange(0, groups * TILE.units)[None, :]
    if TILE.axis == 0:
        group, unit = each // TILE.units, tl.program_id(0) * TILE.units + each % TILE.units
        cols, valid = group * units + unit, (group < GROUPS) & (unit < units)
        rows = tl.arange(0, TILE.rows)[:, None]
        sums = (rows * 0 + cols * 0).to(wide)
        for begin in range(0, depth, P.depth):
            k = begin + tl.arange(0, P.depth)
            left = address(a, first + rows, k[None, :], depth)
            # other programs wrote this before ``_wait`` returned
            left = tl.load(left, (rows < n) & (k[None, :] < depth), 0.0, cache_modifier=".cg")
            right = matrix + k[:, None] * width + cols
            right = tl.load(right, (k[:, None] < depth) & valid, 0.0)
            sums = tl.dot(left, right, sums, input_precision=P.precision, out_dtype=wide)
        tl.store(address(z, to + rows, cols, width), sums, (rows < n) & valid)
    else:
        # few columns leave room for deeper blocks
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
def _scale(a, first, n, vector, z, to, units, TILE: tl.constexpr):
    """Store a program's part of n rows of ``a``, each times a vector, in rows of z."""
    rows, cols, valid = locate(0, n, units, TILE)
    left = load(a, first + rows, cols, valid, units, TILE)
    right = parameter(vector, cols, cols < units, TILE)
    tl.store(address(z, to + rows, cols, units), left * right, valid)


@triton.jit
def _wait(arrived, steps, TILE: tl.constexpr):
    """Wait until all programs whose results this one reads have done ``steps`` steps.

    A program that computes a row reads only its own results.
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
    """Compute ``step.forward`` for several steps, none of them the first of the sequence.

    Args, besides those of ``step.forward``:
        weight: W_h, transposed, or a vector that stands for a diagonal matrix if P is None.
        starts: the first frame of every step of the call and of the one after the last, int64.
        arrived: counter of arrived programs, int32, 0 at first.
        first: the first of these steps.
        stop: the step after the last of these.
        skip: offset of the hidden site's row of statistics from one step to the next.
        skip_out: offset of the cell site's row of statistics from one step to the next.
    """
    units = hint_multiple(units, TILE)
    hidden = Site(gamma, shift, mean, var, row, pitch)
    out = Site(gamma_out, shift_out, mean_out, var_out, row_out, pitch_out)
    for t in range(first, stop):
        past, earlier = t - first, tl.load(starts + t - 1)
        start, n = span(starts, t)
        if P is None:
            tl.debug_barrier()
            _scale(narrow, earlier, n, weight, z, start, units, TILE)
        else:
            if past > 0:
                _wait(arrived, past, TILE)
            _multiply(narrow, earlier, n, units, weight, z, start, units, S.gates, P, TILE)
        # a thread reads what other threads computed
        tl.debug_barrier()
        frames = Frames(x, z, before, start, earlier, n, units)
        site, site_out = _advance_site(hidden, past * skip), _advance_site(out, past * skip_out)
        step_forward(frames, site, site_out, c, h, narrow, S, TILE)


@triton.jit(do_not_specialize=[
    "first", "stop", "row", "skip", "pitch", "row_out", "skip_out", "pitch_out", "later", "rows"
])  # fmt: skip
def backward(
    x, z, before, c, gamma, shift, mean, var, gamma_out, shift_out, mean_out, var_out,
    output, product, carries, last, d_x, d_z, d_gamma, d_shift, d_gamma_out, d_shift_out, weight,
    starts, arrived, first, stop, row, skip, pitch, row_out, skip_out, pitch_out, later, rows,
    units, S: tl.constexpr, TILE: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Compute ``step.backward`` for the steps of ``forward``, the last one first.

    Args, besides those of ``step.backward`` and of ``forward``:
        carries: ``(2, rows, units)``, the buffers ``carried`` and ``carry``: a step reads one and
            writes the other.
        weight: W_h.
        later: active rows of the step after the last of these, whose product is given.
        rows: rows of a buffer.
    """
    units = hint_multiple(units, TILE)
    size = rows.to(tl.int64) * units
    hidden = Site(gamma, shift, mean, var, row, pitch)
    out = Site(gamma_out, shift_out, mean_out, var_out, row_out, pitch_out)
    for back in range(stop - first):
        t = stop - 1 - back
        past, earlier = t - first, tl.load(starts + t - 1)
        start, n = span(starts, t)
        if back > 0:
            after, later = span(starts, t + 1)
            if P is None:
                tl.debug_barrier()
                _scale(d_z, after, later, weight, product, 0, units, TILE)
            else:
                _wait(arrived, back, TILE)
                _multiply(d_z, after, later, S.gates * units, weight, product, 0, units, 1, P, TILE)
            tl.debug_barrier()
        frames = Frames(x, z, before, start, earlier, n, units)
        site, site_out = _advance_site(hidden, past * skip), _advance_site(out, past * skip_out)
        carried = carries + (t + 1) % 2 * size
        carry = carries + t % 2 * size
        up = Upstream(output, product, carried, last, later)
        down = Downstream(d_x, d_z, carry, d_gamma, d_shift, d_gamma_out, d_shift_out)
        step_backward(frames, site, site_out, c, up, down, S, TILE)
