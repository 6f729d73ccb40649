"""One time step on a GPU, forward and back: everything but the recurrent product."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from rnnorm.kernels.triton.block import (
    Frames,
    Upstream,
    advance,
    finish,
    reach,
    retreat,
    statistics,
)
from rnnorm.kernels.triton.site import (
    Site,
    Standardised,
    averages,
    backpropagate,
    load_statistics,
    moments,
    store_statistics,
    weigh,
)
from rnnorm.kernels.triton.tile import (
    accumulate,
    address,
    blocks,
    hint_multiple,
    locate,
    plus,
    total,
    totals,
    zeros,
)


@triton.jit
def step_forward(
    frames, hidden, out, c, h, narrow, S: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Compute c, h, h in the products' type, and the statistics of the rows."""
    GATES: tl.constexpr = S.gates
    start, n, units = frames.start, frames.n, frames.units
    own, own_out = (), ()
    if S.hidden == "own":
        own = statistics(frames, hidden, True, S, TILE)
    if S.out == "own":
        count = n if TILE.axis == 0 else units
        sums = zeros(TILE)
        for block in range(blocks(n, units, TILE)):
            rows, cols, valid = locate(block, n, units, TILE)
            state = advance(frames, hidden, own, rows, cols, valid, S, TILE).state
            sums += total(state, valid, TILE)
        centre = sums / count
        sums = zeros(TILE)
        for block in range(blocks(n, units, TILE)):
            rows, cols, valid = locate(block, n, units, TILE)
            state = advance(frames, hidden, own, rows, cols, valid, S, TILE).state
            sums += total((state - centre) * (state - centre), valid, TILE)
        own_out = (centre, sums / count)
    for block in range(blocks(n, units, TILE)):
        rows, cols, valid = locate(block, n, units, TILE)
        found = advance(frames, hidden, own, rows, cols, valid, S, TILE)
        state = found.state
        if S.equations.has_c:
            tl.store(address(c, start + rows, cols, units), state, valid)
            normal, _ = finish(found, own_out, out, rows, cols, valid, units, S, TILE)
            state = S.equations.out(found.x, found.y, found.before, state, normal, TILE)
        tl.store(address(h, start + rows, cols, units), state, valid)
        if S.narrow:
            tl.store(address(narrow, start + rows, cols, units), state, valid)
    if TILE.axis == 0:
        cols = locate(0, n, units, TILE)[1]
        if S.hidden == "own":
            for k in tl.static_range(GATES):
                store_statistics(hidden, own[k], cols + k * units, cols < units, GATES * units)
        if S.out == "own":
            store_statistics(out, own_out, cols, cols < units, units)


@triton.jit(do_not_specialize=["start", "earlier", "n", "row", "pitch", "row_out", "pitch_out"])
def forward(
    x, z, before, c, h, narrow,
    gamma, shift, mean, var, gamma_out, shift_out, mean_out, var_out,
    start, earlier, n, row, pitch, row_out, pitch_out, units,
    S: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Compute ``step_forward`` for one step.

    The arguments are those of ``Frames``, of the hidden ``Site`` and of the cell site (``_out``).
    """
    frames = Frames(x, z, before, start, earlier, n, hint_multiple(units, TILE))
    hidden = Site(gamma, shift, mean, var, row, pitch)
    out = Site(gamma_out, shift_out, mean_out, var_out, row_out, pitch_out)
    step_forward(frames, hidden, out, c, h, narrow, S, TILE)


class Downstream(NamedTuple):
    """The gradients that one step writes, or adds to where they belong to parameters.

    The gradient of a parameter has one row where statistics run over rows, else one row for each
    row of the batch.

    Args:
        x: gradient of the input terms of all frames.
        z: gradient of the recurrent terms of all frames.
        carry: gradient of the state before, without the part through the recurrent product,
            ``(B, H)``.
        gamma: gradient of the hidden site's scale.
        shift: gradient of the hidden site's shift.
        gamma_out: gradient of the cell site's scale.
        shift_out: gradient of the cell site's shift.
    """

    x: Any
    z: Any
    carry: Any
    gamma: Any
    shift: Any
    gamma_out: Any
    shift_out: Any


@triton.jit
def step_backward(
    frames, hidden, out, c, up, down, S: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Compute the gradients of one step from its states, c or h, and the upstream gradients."""
    HIDDEN: tl.constexpr = S.hidden
    GATES: tl.constexpr = S.gates
    start, n, units = frames.start, frames.n, frames.units
    width = GATES * units
    count = n if TILE.axis == 0 else units
    own_cols = locate(0, n, units, TILE)[1]
    own, own_out, means_out = (), (), (zeros(TILE), zeros(TILE))
    sum_d, sum_d_hat = zeros(TILE), zeros(TILE)
    if S.hidden == "own":
        own = statistics(frames, hidden, False, S, TILE)
    if S.out == "own":
        if TILE.axis == 0:
            own_out = load_statistics(out, own_cols, own_cols < units, units, TILE)
        else:
            own_out = moments(c, c, start, n, units, 1, 0, 1, False, TILE)[0]

    if S.out != "off":
        for block in range(blocks(n, units, TILE)):
            rows, cols, valid = locate(block, n, units, TILE)
            found = advance(frames, hidden, own, rows, cols, valid, S, TILE)
            reached = reach(frames, up, found, out, own_out, rows, cols, valid, S, TILE)
            d = weigh(reached.d_normal, reached.part.gamma, TILE)
            sum_d += total(d, valid, TILE)
            sum_d_hat += total(d * reached.part.hat, valid, TILE)
        means_out = (sum_d / count, sum_d_hat / count)

    sums, sums_hat = (), ()
    for _ in tl.static_range(GATES):
        sums, sums_hat = sums + (zeros(TILE),), sums_hat + (zeros(TILE),)
    if S.hidden != "off" or S.shifted:
        for block in range(blocks(n, units, TILE)):
            rows, cols, valid = locate(block, n, units, TILE)
            left = retreat(
                frames, up, hidden, own, out, own_out, means_out, rows, cols, valid, S, TILE
            )
            ds, ds_hat = (), ()
            for k in tl.static_range(GATES):
                d = weigh(left.y[k], left.parts.gamma[k], TILE)
                ds, ds_hat = ds + (d,), ds_hat + (d * left.parts.hat[k],)
            sums = plus(sums, totals(ds, valid, TILE))
            sums_hat = plus(sums_hat, totals(ds_hat, valid, TILE))

    if TILE.axis == 1 and S.split:
        means = averages(sums[:2], n, units, TILE) + averages(sums[2:], n, units, TILE)
        means_hat = averages(sums_hat[:2], n, units, TILE) + averages(sums_hat[2:], n, units, TILE)
    else:
        means, means_hat = averages(sums, n, units, TILE), averages(sums_hat, n, units, TILE)
    for block in range(blocks(n, units, TILE)):
        rows, cols, valid = locate(block, n, units, TILE)
        left = retreat(frames, up, hidden, own, out, own_out, means_out, rows, cols, valid, S, TILE)
        for k in tl.static_range(GATES):
            col = cols + k * units
            d = left.y[k]
            if TILE.axis == 1:
                if S.shifted:
                    accumulate(down.shift, rows, col, valid, width, d)
                if S.hidden != "off":
                    accumulate(down.gamma, rows, col, valid, width, d * left.parts.hat[k])
            if S.hidden != "off":
                part = Standardised(left.parts.hat[k], left.parts.inverse[k], left.parts.gamma[k])
                d = backpropagate(d, part, means[k], means_hat[k], HIDDEN, TILE)
            tl.store(address(down.z, start + rows, col, width), d, valid)
            tl.store(address(down.x, start + rows, col, width), d if S.joint else left.x[k], valid)
        if S.equations.reads:
            tl.store(address(down.carry, rows, cols, units), left.before, valid)
        if TILE.axis == 1 and S.out != "off":
            accumulate(down.shift_out, rows, cols, valid, units, left.d_normal)
            accumulate(down.gamma_out, rows, cols, valid, units, left.d_normal * left.part.hat)
    # last, as the compiler may merge repeated loads only up to the first store
    if TILE.axis == 0:
        if S.out != "off":
            accumulate(down.shift_out, 0 * own_cols, own_cols, own_cols < units, units, sum_d)
            accumulate(down.gamma_out, 0 * own_cols, own_cols, own_cols < units, units, sum_d_hat)
        for k in tl.static_range(GATES):
            col = own_cols + k * units
            if S.shifted:
                accumulate(down.shift, 0 * col, col, own_cols < units, width, sums[k])
            if S.hidden != "off":
                accumulate(down.gamma, 0 * col, col, own_cols < units, width, sums_hat[k])


@triton.jit(do_not_specialize=[
    "start", "earlier", "n", "later", "row", "pitch", "row_out", "pitch_out"
])  # fmt: skip
def backward(
    x, z, before, c, gamma, shift, mean, var, gamma_out, shift_out, mean_out, var_out,
    output, product, carried, last, d_x, d_z, carry, d_gamma, d_shift, d_gamma_out, d_shift_out,
    start, earlier, n, later, row, pitch, row_out, pitch_out, units,
    S: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Compute ``step_backward`` for one step.

    The arguments are those of ``forward``, of ``Upstream`` and of ``Downstream``.
    """
    frames = Frames(x, z, before, start, earlier, n, hint_multiple(units, TILE))
    hidden = Site(gamma, shift, mean, var, row, pitch)
    out = Site(gamma_out, shift_out, mean_out, var_out, row_out, pitch_out)
    up = Upstream(output, product, carried, last, later)
    down = Downstream(d_x, d_z, carry, d_gamma, d_shift, d_gamma_out, d_shift_out)
    step_backward(frames, hidden, out, c, up, down, S, TILE)
