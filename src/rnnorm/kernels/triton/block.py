"""The values and gradients of one block of a time step on a GPU."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from rnnorm.kernels.triton.site import (
    Standardised,
    backpropagate,
    load_statistics,
    moments,
    standardise,
    term,
)
from rnnorm.kernels.triton.tile import load, locate, parameter


class StepVariant(NamedTuple):
    """One variant of a step's kernels, known when it is compiled.

    Args:
        gates: number of gates of the cell.
        equations: the cell's ``Equations``, None for other kernels.
        split: whether the last gate has statistics over units of its own.
        hidden: scope of the hidden site, the recurrent or joint term.
        joint: whether the hidden term is the sum with the input term.
        shifted: whether a shift is added to the hidden term.
        out: scope of the cell site, a cell's c on its way into h.
        narrow: whether h is stored in the products' type too.
    """

    gates: int
    equations: Any
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
        before: c at the step before, or h of a cell without c.
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
def statistics(frames, site, TAKE: tl.constexpr, S: tl.constexpr, TILE: tl.constexpr):
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
        x: finished input terms, one for each gate.
        y: finished recurrent terms.
        parts: the parts of these before the shift, one of each for each gate.
        before: state before the step.
        state: state after the step: c, or h of a cell without c.
    """

    x: Any
    y: Any
    parts: Any
    before: Any
    state: Any


@triton.jit
def advance(frames, site, own, rows, cols, valid, S: tl.constexpr, TILE: tl.constexpr):
    """Compute a block of the step."""
    HIDDEN: tl.constexpr = S.hidden
    JOINT: tl.constexpr = S.joint
    GATES: tl.constexpr = S.gates
    units, width = frames.units, GATES * frames.units
    xs, ys, hats, inverses, gammas = (), (), (), (), ()
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
        xs, ys, hats = xs + (x,), ys + (y,), hats + (part.hat,)
        inverses, gammas = inverses + (part.inverse,), gammas + (part.gamma,)
    before = xs[0]
    if S.equations.reads:
        before = load(frames.before, frames.earlier + rows, cols, valid, units, TILE)
    state = S.equations.advance(xs, ys, before, TILE)
    # Triton 3.6 forgets the names in a tuple of named tuples
    return Block(xs, ys, Standardised(hats, inverses, gammas), before, state)


@triton.jit
def finish(block, own, site, rows, cols, valid, units, S: tl.constexpr, TILE: tl.constexpr):
    """Return the normalised c, and its parts."""
    OUT: tl.constexpr = S.out
    c = block.state
    if OUT == "off":
        return c, Standardised(c, c, c)
    else:
        part = standardise(c, own, site, rows, cols, valid, units, OUT, TILE)
        return part.hat * part.gamma + parameter(site.shift, cols, cols < units, TILE), part


class Upstream(NamedTuple):
    """Gradients that reach the rows of one step.

    Args:
        output: gradient of h of all frames, without the part through the next step.
        product: gradient of h through the next step's recurrent product, ``(B, H)``.
        carried: gradient of the state that the next step was given, ``(B, H)``.
        last: gradient of c after a row's last frame, ``(B, H)``.
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
        normal: the normalised c.
        d_normal: gradient of the normalised c.
        part: the parts of the normalised c.
    """

    h: Any
    normal: Any
    d_normal: Any
    part: Any


@triton.jit
def reach(
    frames, up, block, out, own_out, rows, cols, valid, S: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Compute the gradients that reach a block from the next step and from above."""
    units, on = frames.units, valid & (rows < up.later)
    d = load(up.output, frames.start + rows, cols, valid, units, TILE)
    d += load(up.product, rows, cols, on, units, TILE)
    if S.equations.has_c:
        normal, part = finish(block, own_out, out, rows, cols, valid, units, S, TILE)
        d_normal = S.equations.retreat_out(
            block.x, block.y, block.before, block.state, normal, d, TILE
        )
        return Reached(d, normal, d_normal, part)
    else:
        return Reached(d, d, d, Standardised(d, d, d))


class Left(NamedTuple):
    """The gradients that leave a block of a step.

    Args:
        x: gradients of the input terms, one for each gate.
        y: gradients of the finished recurrent terms.
        before: gradient of the state before, without the part through the recurrent product.
        parts: the parts of the recurrent terms, one of each for each gate.
        d_normal: gradient of the normalised c.
        part: the parts of the normalised c.
    """

    x: Any
    y: Any
    before: Any
    parts: Any
    d_normal: Any
    part: Any


@triton.jit
def retreat(
    frames, up, hidden, own, out, own_out, means_out, rows, cols, valid,
    S: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients that leave a block."""
    OUT: tl.constexpr = S.out
    found = advance(frames, hidden, own, rows, cols, valid, S, TILE)
    reached = reach(frames, up, found, out, own_out, rows, cols, valid, S, TILE)
    d = reached.d_normal
    if S.equations.has_c:
        if OUT != "off":
            d = backpropagate(d, reached.part, means_out[0], means_out[1], OUT, TILE)
        d += load(up.last, rows, cols, valid & (rows >= up.later), frames.units, TILE)
    if S.equations.reads:
        d += load(up.carried, rows, cols, valid & (rows < up.later), frames.units, TILE)
    d_x, d_y, before = S.equations.retreat(
        found.x, found.y, found.before, found.state, reached.normal, reached.h, d, TILE
    )
    return Left(d_x, d_y, before, found.parts, reached.d_normal, reached.part)
