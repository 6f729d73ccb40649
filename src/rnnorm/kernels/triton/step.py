"""One time step on a GPU, forward and back: everything but the recurrent product."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from rnnorm.kernels.triton.equations import activations, advance, retreat
from rnnorm.kernels.triton.site import (
    Site,
    averages,
    leave,
    moments,
    standardise,
    taken,
    term,
    through,
    weighed,
)
from rnnorm.kernels.triton.tile import (
    accumulate,
    address,
    blocks,
    counted,
    load,
    parameter,
    place,
    plus,
    tanh,
    total,
    totals,
    zeros,
)


class Step(NamedTuple):
    """What a step does, known when it is compiled.

    Args:
        cell: its name.
        gates: of the cell.
        hidden: scope of the recurrent or joint term.
        joint: whether that is the sum with the input term.
        shifted: whether something is added to it.
        out: scope of an LSTM's c on its way into h.
        narrow: whether h is stored in the products' type too.
    """

    cell: str
    gates: int
    hidden: str
    joint: bool
    shifted: bool
    out: str
    narrow: bool


class Frames(NamedTuple):
    """The rows of one step as a kernel sees them.

    Args:
        x: input terms of all frames, gate beside gate; a frame is a row at a step.
        z: raw recurrent terms, likewise.
        before: c of an LSTM, h of a GRU, of the step before.
        start: the step's first frame.
        earlier: the first row of the step before in ``before``.
        n: active rows.
        units: H.
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
    """Mean and variance of each gate: taken of the rows, or read where they were left."""
    JOINT: tl.constexpr = S.joint
    GATES: tl.constexpr = S.gates
    x, z, start, n, units = frames.x, frames.z, frames.start, frames.n, frames.units
    if TILE.axis == 0 and not TAKE:
        own = ()
        cols = place(0, n, units, TILE)[1]
        for k in tl.static_range(GATES):
            own += (taken(site, cols + k * units, cols < units, GATES * units, TILE),)
        return own
    elif TILE.axis == 1 and S.cell == "GRU":
        first = moments(z, x, start, n, units, 3, 0, 2, JOINT, TILE)
        return first + moments(z, x, start, n, units, 3, 2, 1, JOINT, TILE)
    else:
        return moments(z, x, start, n, units, GATES, 0, GATES, JOINT, TILE)


@triton.jit
def _advance(frames, site, own, rows, cols, there, S: tl.constexpr, TILE: tl.constexpr):
    """A block's recurrent terms, what they were made of, activations, and both states."""
    CELL: tl.constexpr = S.cell
    HIDDEN: tl.constexpr = S.hidden
    JOINT: tl.constexpr = S.joint
    GATES: tl.constexpr = S.gates
    units, width = frames.units, GATES * frames.units
    xs, ys, parts = (), (), ()
    for k in tl.static_range(GATES):
        col = cols + k * units
        y = term(frames.z, frames.x, frames.start + rows, col, there, width, JOINT, TILE)
        part = (y, y, y)
        if HIDDEN == "own":
            part = standardise(y, own[k], site, rows, col, there, width, HIDDEN, TILE)
            y = part[0] * part[2]
        elif HIDDEN == "given":
            part = standardise(y, own, site, rows, col, there, width, HIDDEN, TILE)
            y = part[0] * part[2]
        if S.shifted:
            y += parameter(site.shift, col, col < width, TILE)
        x = tl.zeros_like(y)
        if not JOINT:
            x = load(frames.x, frames.start + rows, col, there, width, TILE)
        xs, ys, parts = xs + (x,), ys + (y,), parts + (part,)
    a = activations(xs, ys, CELL)
    before = a[0]
    if GATES > 1:
        before = load(frames.before, frames.earlier + rows, cols, there, units, TILE)
    return ys, parts, a, before, advance(a, before, CELL)


@triton.jit
def _out(c, own, site, rows, cols, there, units, S: tl.constexpr, TILE: tl.constexpr):
    """Tanh of a normalised c, and what the latter was made of."""
    OUT: tl.constexpr = S.out
    if OUT == "off":
        return tanh(c), (c, c, c)
    else:
        part = standardise(c, own, site, rows, cols, there, units, OUT, TILE)
        y = part[0] * part[2] + parameter(site.shift, cols, cols < units, TILE)
        return tanh(y), part


@triton.jit
def step_forward(
    frames, hidden, out, c, h, narrow, S: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Computes c, h, h in the products' type, and the statistics of the rows."""
    GATES: tl.constexpr = S.gates
    start, n, units = frames.start, frames.n, frames.units
    own, own_out = (), ()
    if S.hidden == "own":
        own = _statistics(frames, hidden, True, S, TILE)
    if S.out == "own":
        count = n if TILE.axis == 0 else units
        sums = zeros(TILE)
        for block in range(blocks(n, units, TILE)):
            rows, cols, there = place(block, n, units, TILE)
            state = _advance(frames, hidden, own, rows, cols, there, S, TILE)[4]
            sums += total(state, there, TILE)
        centre = sums / count
        sums = zeros(TILE)
        for block in range(blocks(n, units, TILE)):
            rows, cols, there = place(block, n, units, TILE)
            state = _advance(frames, hidden, own, rows, cols, there, S, TILE)[4]
            sums += total((state - centre) * (state - centre), there, TILE)
        own_out = (centre, sums / count)
    for block in range(blocks(n, units, TILE)):
        rows, cols, there = place(block, n, units, TILE)
        found = _advance(frames, hidden, own, rows, cols, there, S, TILE)
        state = found[4]
        if S.cell == "LSTM":
            tl.store(address(c, start + rows, cols, units), state, there)
            y = _out(state, own_out, out, rows, cols, there, units, S, TILE)
            state = found[2][3] * y[0]
        tl.store(address(h, start + rows, cols, units), state, there)
        if S.narrow:
            tl.store(address(narrow, start + rows, cols, units), state, there)
    if TILE.axis == 0:
        cols = place(0, n, units, TILE)[1]
        if S.hidden == "own":
            for k in tl.static_range(GATES):
                leave(hidden, own[k], cols + k * units, cols < units, GATES * units)
        if S.out == "own":
            leave(out, own_out, cols, cols < units, units)


@triton.jit(do_not_specialize=["start", "earlier", "n", "row", "pitch", "row_out", "pitch_out"])
def forward(
    x, z, before, c, h, narrow,
    gamma, shift, mean, var, gamma_out, shift_out, mean_out, var_out,
    start, earlier, n, row, pitch, row_out, pitch_out, units,
    S: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``step_forward`` of one step.

    Arguments are those of ``Frames``, of the hidden ``Site`` and of the one on the way out.
    """
    frames = Frames(x, z, before, start, earlier, n, counted(units, TILE))
    hidden = Site(gamma, shift, mean, var, row, pitch)
    out = Site(gamma_out, shift_out, mean_out, var_out, row_out, pitch_out)
    step_forward(frames, hidden, out, c, h, narrow, S, TILE)


class Upstream(NamedTuple):
    """Gradients that reach the rows of one step.

    Args:
        output: of h of all frames, but for the next step's part.
        product: of h through the next step's recurrent product, ``(B, H)``.
        carried: of the state that the next step was given, ``(B, H)``.
        last: of an LSTM's c after a row's last frame, ``(B, H)``.
        later: active rows of the next step.
    """

    output: Any
    product: Any
    carried: Any
    last: Any
    later: Any


@triton.jit
def _retreat_out(
    frames, up, out, own_out, state, a, rows, cols, there, S: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Gradients of h, of an LSTM's normalised c and of its o, and what c's were made of."""
    units, on = frames.units, there & (rows < up.later)
    d = load(up.output, frames.start + rows, cols, there, units, TILE)
    d += load(up.product, rows, cols, on, units, TILE)
    if S.cell == "LSTM":
        y, part = _out(state, own_out, out, rows, cols, there, units, S, TILE)
        return d, d * a[3] * (1 - y * y), d * y * a[3] * (1 - a[3]), part
    else:
        return d, d, d, (d, d, d)


@triton.jit
def _retreat(
    frames, up, hidden, own, out, own_out, means_out, rows, cols, there,
    S: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """A block's gradients of x, of the recurrent terms, of the state before and of c's y."""
    CELL: tl.constexpr = S.cell
    OUT: tl.constexpr = S.out
    ys, parts, a, before, state = _advance(frames, hidden, own, rows, cols, there, S, TILE)
    d, d_y, d_o, part = _retreat_out(frames, up, out, own_out, state, a, rows, cols, there, S, TILE)
    on = there & (rows < up.later)
    if CELL == "LSTM":
        d = d_y
        if OUT != "off":
            d = through(d_y, part[0], part[1], part[2], means_out[0], means_out[1], OUT, TILE)
        d += load(up.last, rows, cols, there & (rows >= up.later), frames.units, TILE)
    if S.gates > 1:
        d += load(up.carried, rows, cols, on, frames.units, TILE)
    d_x, d_z, carry = retreat(a, ys, before, d, d_o, CELL)
    return d_x, d_z, carry, parts, d_y, part


class Downstream(NamedTuple):
    """Where gradients go; those of the parameters are added to.

    Args:
        x: of the input terms of all frames.
        z: of the recurrent terms, likewise.
        carry: of the state before by ``advance`` alone, ``(B, H)``.
        gamma: of the hidden site. Where statistics run over rows, a parameter's gradient has one
            row, else one for each row of the batch.
        shift: likewise.
        gamma_out: of the site on the way out.
        shift_out: likewise.
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
    """Computes the gradients of one step from its states c, or h, and those upstream."""
    HIDDEN: tl.constexpr = S.hidden
    GATES: tl.constexpr = S.gates
    start, n, units = frames.start, frames.n, frames.units
    width = GATES * units
    count = n if TILE.axis == 0 else units
    mine = place(0, n, units, TILE)[1]
    own, own_out, means_out = (), (), (zeros(TILE), zeros(TILE))
    sum_d, sum_d_hat = zeros(TILE), zeros(TILE)
    if S.hidden == "own":
        own = _statistics(frames, hidden, False, S, TILE)
    if S.out == "own":
        if TILE.axis == 0:
            own_out = taken(out, mine, mine < units, units, TILE)
        else:
            own_out = moments(c, c, start, n, units, 1, 0, 1, False, TILE)[0]

    if S.out != "off":
        for block in range(blocks(n, units, TILE)):
            rows, cols, there = place(block, n, units, TILE)
            found = _advance(frames, hidden, own, rows, cols, there, S, TILE)
            back = _retreat_out(
                frames, up, out, own_out, found[4], found[2], rows, cols, there, S, TILE
            )
            d = weighed(back[1], back[3][2], TILE)
            sum_d += total(d, there, TILE)
            sum_d_hat += total(d * back[3][0], there, TILE)
        means_out = (sum_d / count, sum_d_hat / count)

    sums, sums_hat = (), ()
    for _ in tl.static_range(GATES):
        sums, sums_hat = sums + (zeros(TILE),), sums_hat + (zeros(TILE),)
    if S.hidden != "off" or S.shifted:
        for block in range(blocks(n, units, TILE)):
            rows, cols, there = place(block, n, units, TILE)
            back = _retreat(
                frames, up, hidden, own, out, own_out, means_out, rows, cols, there, S, TILE
            )
            ds, ds_hat = (), ()
            for k in tl.static_range(GATES):
                d = weighed(back[1][k], back[3][k][2], TILE)
                ds, ds_hat = ds + (d,), ds_hat + (d * back[3][k][0],)
            sums = plus(sums, totals(ds, there, TILE))
            sums_hat = plus(sums_hat, totals(ds_hat, there, TILE))

    if TILE.axis == 1 and S.cell == "GRU":
        means = averages(sums[:2], n, units, TILE) + averages(sums[2:], n, units, TILE)
        means_hat = averages(sums_hat[:2], n, units, TILE) + averages(sums_hat[2:], n, units, TILE)
    else:
        means, means_hat = averages(sums, n, units, TILE), averages(sums_hat, n, units, TILE)
    for block in range(blocks(n, units, TILE)):
        rows, cols, there = place(block, n, units, TILE)
        d_xs, d_ys, d_before, parts, d_out, part = _retreat(
            frames, up, hidden, own, out, own_out, means_out, rows, cols, there, S, TILE
        )
        for k in tl.static_range(GATES):
            col = cols + k * units
            d = d_ys[k]
            if TILE.axis == 1:
                if S.shifted:
                    accumulate(down.shift, rows, col, there, width, d)
                if S.hidden != "off":
                    accumulate(down.gamma, rows, col, there, width, d * parts[k][0])
            if S.hidden != "off":
                d = through(
                    d, parts[k][0], parts[k][1], parts[k][2], means[k], means_hat[k], HIDDEN, TILE
                )  # fmt: skip
            tl.store(address(down.z, start + rows, col, width), d, there)
            tl.store(address(down.x, start + rows, col, width), d if S.joint else d_xs[k], there)
        if GATES > 1:
            tl.store(address(down.carry, rows, cols, units), d_before, there)
        if TILE.axis == 1 and S.out != "off":
            accumulate(down.shift_out, rows, cols, there, units, d_out)
            accumulate(down.gamma_out, rows, cols, there, units, d_out * part[0])
    # at the end: up to the first write what is read and computed twice is found to be the same
    if TILE.axis == 0:
        if S.out != "off":
            accumulate(down.shift_out, 0 * mine, mine, mine < units, units, sum_d)
            accumulate(down.gamma_out, 0 * mine, mine, mine < units, units, sum_d_hat)
        for k in tl.static_range(GATES):
            col = mine + k * units
            if S.shifted:
                accumulate(down.shift, 0 * col, col, mine < units, width, sums[k])
            if S.hidden != "off":
                accumulate(down.gamma, 0 * col, col, mine < units, width, sums_hat[k])


@triton.jit(do_not_specialize=[
    "start", "earlier", "n", "later", "row", "pitch", "row_out", "pitch_out"
])  # fmt: skip
def backward(
    x, z, before, c, gamma, shift, mean, var, gamma_out, shift_out, mean_out, var_out,
    output, product, carried, last, d_x, d_z, carry, d_gamma, d_shift, d_gamma_out, d_shift_out,
    start, earlier, n, later, row, pitch, row_out, pitch_out, units,
    S: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``step_backward`` of one step.

    Arguments are those of ``forward``, of ``Upstream`` and of ``Downstream``.
    """
    frames = Frames(x, z, before, start, earlier, n, counted(units, TILE))
    hidden = Site(gamma, shift, mean, var, row, pitch)
    out = Site(gamma_out, shift_out, mean_out, var_out, row_out, pitch_out)
    up = Upstream(output, product, carried, last, later)
    down = Downstream(d_x, d_z, carry, d_gamma, d_shift, d_gamma_out, d_shift_out)
    step_backward(frames, hidden, out, c, up, down, S, TILE)
