"""One time step on a GPU, forward and back: everything but the recurrent product."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from rnnorm.kernels.triton.equations import activations, advance, retreat
from rnnorm.kernels.triton.site import (
    Site,
    Standardised,
    averages,
    backpropagate,
    load_statistics,
    moments,
    standardise,
    store_statistics,
    term,
    weigh,
)
from rnnorm.kernels.triton.tile import (
    accumulate,
    address,
    blocks,
    hint_multiple,
    load,
    locate,
    parameter,
    plus,
    tanh,
    total,
    totals,
    zeros,
)


class Step(NamedTuple):
    """One variant of a step's kernels, known when it is compiled.

    Args:
        cell: name of the cell, which chooses its equations.
        gates: number of gates of the cell.
        has_c: whether the cell has a state c.
        split: whether the last gate has statistics over units of its own.
        hidden: scope of the hidden site, the recurrent or joint term.
        joint: whether the hidden term is the sum with the input term.
        shifted: whether a shift is added to the hidden term.
        out: scope of the cell site, an LSTM's c on its way into h.
        narrow: whether h is stored in the products' type too.
    """

    cell: str
    gates: int
    has_c: bool
    split: bool
    hidden: str
    joint: bool
    shifted: bool
    out: str
    narrow: bool


class Frames(NamedTuple):
    """The rows of one step as a kernel sees them.

    Args:
        x: input terms of all frames, gate beside gate; a frame is a row at a step.
        z: raw recurrent terms of all frames, gate beside gate.
        before: c of an LSTM or h of a GRU at the step before.
        start: the step's first frame.
        earlier: the first row of the step before in ``before``.
        n: number of active rows.
        units: number of hidden units H.
    """

    x: Any
    z: Any
    before: Any
    start: Any
    earlier: Any
    n: Any
    units: Any


@triton.jit
def _statistics(frames, site, TAKE: tl.constexpr, S: tl.constexpr, TILE: tl.constexpr):
    """Return the mean and variance of each gate, computed from the rows or loaded."""
    JOINT: tl.constexpr = S.joint
    GATES: tl.constexpr = S.gates
    x, z, start, n, units = frames.x, frames.z, frames.start, frames.n, frames.units
    if TILE.axis == 0 and not TAKE:
        own = ()
        cols = locate(0, n, units, TILE)[1]
        for k in tl.static_range(GATES):
            own += (load_statistics(site, cols + k * units, cols < units, GATES * units, TILE),)
        return own
    elif TILE.axis == 1 and S.split:
        first = moments(z, x, start, n, units, 3, 0, 2, JOINT, TILE)
        return first + moments(z, x, start, n, units, 3, 2, 1, JOINT, TILE)
    else:
        return moments(z, x, start, n, units, GATES, 0, GATES, JOINT, TILE)


class Block(NamedTuple):
    """The values of a step in one block.

    Args:
        y: finished recurrent terms, one for each gate.
        parts: the parts of each, before the shift.
        a: activations.
        before: state before the step.
        state: state after the step: c of an LSTM, else h.
    """

    y: Any
    parts: Any
    a: Any
    before: Any
    state: Any


@triton.jit
def _advance(frames, site, own, rows, cols, valid, S: tl.constexpr, TILE: tl.constexpr):
    """Compute a block of the step."""
    CELL: tl.constexpr = S.cell
    HIDDEN: tl.constexpr = S.hidden
    JOINT: tl.constexpr = S.joint
    GATES: tl.constexpr = S.gates
    units, width = frames.units, GATES * frames.units
    xs, ys, parts = (), (), ()
    for k in tl.static_range(GATES):
        col = cols + k * units
        y = term(frames.z, frames.x, frames.start + rows, col, valid, width, JOINT, TILE)
        part = Standardised(y, y, y)
        if HIDDEN == "own":
            part = standardise(y, own[k], site, rows, col, valid, width, HIDDEN, TILE)
            y = part.hat * part.gamma
        elif HIDDEN == "given":
            part = standardise(y, own, site, rows, col, valid, width, HIDDEN, TILE)
            y = part.hat * part.gamma
        if S.shifted:
            y += parameter(site.shift, col, col < width, TILE)
        x = tl.zeros_like(y)
        if not JOINT:
            x = load(frames.x, frames.start + rows, col, valid, width, TILE)
        xs, ys, parts = xs + (x,), ys + (y,), parts + (part,)
    a = activations(xs, ys, CELL)
    before = a[0]
    if GATES > 1:
        before = load(frames.before, frames.earlier + rows, cols, valid, units, TILE)
    return Block(ys, parts, a, before, advance(a, before, CELL))


@triton.jit
def _out(c, own, site, rows, cols, valid, units, S: tl.constexpr, TILE: tl.constexpr):
    """Return tanh of the normalised c, and the parts of the normalised c."""
    OUT: tl.constexpr = S.out
    if OUT == "off":
        return tanh(c), Standardised(c, c, c)
    else:
        part = standardise(c, own, site, rows, cols, valid, units, OUT, TILE)
        y = part.hat * part.gamma + parameter(site.shift, cols, cols < units, TILE)
        return tanh(y), part


@triton.jit
def step_forward(
    frames, hidden, out, c, h, narrow, S: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Compute c, h, h in the products' type, and the statistics of the rows."""
    GATES: tl.constexpr = S.gates
    start, n, units = frames.start, frames.n, frames.units
    own, own_out = (), ()
    if S.hidden == "own":
        own = _statistics(frames, hidden, True, S, TILE)
    if S.out == "own":
        count = n if TILE.axis == 0 else units
        sums = zeros(TILE)
        for block in range(blocks(n, units, TILE)):
            rows, cols, valid = locate(block, n, units, TILE)
            state = _advance(frames, hidden, own, rows, cols, valid, S, TILE).state
            sums += total(state, valid, TILE)
        centre = sums / count
        sums = zeros(TILE)
        for block in range(blocks(n, units, TILE)):
            rows, cols, valid = locate(block, n, units, TILE)
            state = _advance(frames, hidden, own, rows, cols, valid, S, TILE).state
            sums += total((state - centre) * (state - centre), valid, TILE)
        own_out = (centre, sums / count)
    for block in range(blocks(n, units, TILE)):
        rows, cols, valid = locate(block, n, units, TILE)
        found = _advance(frames, hidden, own, rows, cols, valid, S, TILE)
        state = found.state
        if S.has_c:
            tl.store(address(c, start + rows, cols, units), state, valid)
            squashed, _ = _out(state, own_out, out, rows, cols, valid, units, S, TILE)
            state = found.a[3] * squashed
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


class Upstream(NamedTuple):
    """Gradients that reach the rows of one step.

    Args:
        output: gradient of h of all frames, without the part through the next step.
        product: gradient of h through the next step's recurrent product, ``(B, H)``.
        carried: gradient of the state that the next step was given, ``(B, H)``.
        last: gradient of an LSTM's c after a row's last frame, ``(B, H)``.
        later: number of active rows of the next step.
    """

    output: Any
    product: Any
    carried: Any
    last: Any
    later: Any


class Reached(NamedTuple):
    """The gradients that reach a block of a step.

    Args:
        h: gradient of h.
        y_c: gradient of an LSTM's normalised c.
        o: gradient of an LSTM's preactivation of o.
        part_c: the parts of the normalised c.
    """

    h: Any
    y_c: Any
    o: Any
    part_c: Any


@triton.jit
def _retreat_out(
    frames, up, out, own_out, state, a, rows, cols, valid, S: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Compute the gradients that reach a block from the next step and from above."""
    units, on = frames.units, valid & (rows < up.later)
    d = load(up.output, frames.start + rows, cols, valid, units, TILE)
    d += load(up.product, rows, cols, on, units, TILE)
    if S.has_c:
        y, part = _out(state, own_out, out, rows, cols, valid, units, S, TILE)
        return Reached(d, d * a[3] * (1 - y * y), d * y * a[3] * (1 - a[3]), part)
    else:
        return Reached(d, d, d, Standardised(d, d, d))


@triton.jit
def _retreat(
    frames, up, hidden, own, out, own_out, means_out, rows, cols, valid,
    S: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients that leave a block."""
    OUT: tl.constexpr = S.out
    found = _advance(frames, hidden, own, rows, cols, valid, S, TILE)
    reached = _retreat_out(
        frames, up, out, own_out, found.state, found.a, rows, cols, valid, S, TILE
    )
    on = valid & (rows < up.later)
    d = reached.h
    if S.has_c:
        d = reached.y_c
        if OUT != "off":
            d = backpropagate(d, reached.part_c, means_out[0], means_out[1], OUT, TILE)
        d += load(up.last, rows, cols, valid & (rows >= up.later), frames.units, TILE)
    if S.gates > 1:
        d += load(up.carried, rows, cols, on, frames.units, TILE)
    d_x, d_y, carry = retreat(found.a, found.y, found.before, d, reached.o, S.cell)
    return Left(d_x, d_y, carry, found.parts, reached.y_c, reached.part_c)


class Left(NamedTuple):
    """The gradients that leave a block of a step.

    Args:
        x: gradients of the input terms, one for each gate.
        y: gradients of the finished recurrent terms.
        before: gradient of the state before, through ``advance`` alone.
        parts: the parts of the recurrent terms.
        y_c: gradient of an LSTM's normalised c.
        part_c: the parts of the normalised c.
    """

    x: Any
    y: Any
    before: Any
    parts: Any
    y_c: Any
    part_c: Any


class Downstream(NamedTuple):
    """The gradients that one step writes, or adds to where they belong to parameters.

    The gradient of a parameter has one row where statistics run over rows, else one row for each
    row of the batch.

    Args:
        x: gradient of the input terms of all frames.
        z: gradient of the recurrent terms of all frames.
        carry: gradient of the state before through ``advance`` alone, ``(B, H)``.
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
        own = _statistics(frames, hidden, False, S, TILE)
    if S.out == "own":
        if TILE.axis == 0:
            own_out = load_statistics(out, own_cols, own_cols < units, units, TILE)
        else:
            own_out = moments(c, c, start, n, units, 1, 0, 1, False, TILE)[0]

    if S.out != "off":
        for block in range(blocks(n, units, TILE)):
            rows, cols, valid = locate(block, n, units, TILE)
            found = _advance(frames, hidden, own, rows, cols, valid, S, TILE)
            reached = _retreat_out(
                frames, up, out, own_out, found.state, found.a, rows, cols, valid, S, TILE
            )
            d = weigh(reached.y_c, reached.part_c.gamma, TILE)
            sum_d += total(d, valid, TILE)
            sum_d_hat += total(d * reached.part_c.hat, valid, TILE)
        means_out = (sum_d / count, sum_d_hat / count)

    sums, sums_hat = (), ()
    for _ in tl.static_range(GATES):
        sums, sums_hat = sums + (zeros(TILE),), sums_hat + (zeros(TILE),)
    if S.hidden != "off" or S.shifted:
        for block in range(blocks(n, units, TILE)):
            rows, cols, valid = locate(block, n, units, TILE)
            left = _retreat(
                frames, up, hidden, own, out, own_out, means_out, rows, cols, valid, S, TILE
            )
            ds, ds_hat = (), ()
            for k in tl.static_range(GATES):
                d = weigh(left.y[k], left.parts[k].gamma, TILE)
                ds, ds_hat = ds + (d,), ds_hat + (d * left.parts[k].hat,)
            sums = plus(sums, totals(ds, valid, TILE))
            sums_hat = plus(sums_hat, totals(ds_hat, valid, TILE))

    if TILE.axis == 1 and S.split:
        means = averages(sums[:2], n, units, TILE) + averages(sums[2:], n, units, TILE)
        means_hat = averages(sums_hat[:2], n, units, TILE) + averages(sums_hat[2:], n, units, TILE)
    else:
        means, means_hat = averages(sums, n, units, TILE), averages(sums_hat, n, units, TILE)
    for block in range(blocks(n, units, TILE)):
        rows, cols, valid = locate(block, n, units, TILE)
        left = _retreat(
            frames, up, hidden, own, out, own_out, means_out, rows, cols, valid, S, TILE
        )
        for k in tl.static_range(GATES):
            col = cols + k * units
            d = left.y[k]
            if TILE.axis == 1:
                if S.shifted:
                    accumulate(down.shift, rows, col, valid, width, d)
                if S.hidden != "off":
                    accumulate(down.gamma, rows, col, valid, width, d * left.parts[k].hat)
            if S.hidden != "off":
                d = backpropagate(d, left.parts[k], means[k], means_hat[k], HIDDEN, TILE)
            tl.store(address(down.z, start + rows, col, width), d, valid)
            tl.store(address(down.x, start + rows, col, width), d if S.joint else left.x[k], valid)
        if GATES > 1:
            tl.store(address(down.carry, rows, cols, units), left.before, valid)
        if TILE.axis == 1 and S.out != "off":
            accumulate(down.shift_out, rows, cols, valid, units, left.y_c)
            accumulate(down.gamma_out, rows, cols, valid, units, left.y_c * left.part_c.hat)
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
