"""How one call goes over its frames: where steps begin, whose statistics serve, which tiles."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rnnorm.kernels.covered import GATES
from rnnorm.kernels.inputs import Inputs, Options
from rnnorm.kernels.triton.step import Step
from rnnorm.kernels.triton.tile import Tile
from rnnorm.norm.moments import Moments

# a large GPU runs about as many at once
_PROGRAMS = 128


class Source(NamedTuple):
    """Whence a step has the statistics of a site, and where it leaves those of its rows.

    Args:
        scope: "own", "given" or "off".
        mean: matrix of a row for each step, or of more.
        var: likewise.
        row: for the step's first row.
        pitch: how much further each next row's is.
        skip: how much further the next step's is.
    """

    scope: str
    mean: Tensor
    var: Tensor
    row: int
    pitch: int
    skip: int


class Plan:
    """What both passes need to know of the sizes and options of a call.

    Frames, the rows that are active at a step, stand one after another, step after step.

    Args:
        inputs: of both passes.
        options: likewise.
    """

    def __init__(self, inputs: Inputs, options: Options) -> None:
        self.sizes: list[int] = inputs.sizes.tolist()
        self.starts = [0, *accumulate(self.sizes)]
        self.T, self.B, _ = inputs.x.shape
        self.H = inputs.weight_hh.size(1)
        self.frames = self.starts[-1]
        self.gates = GATES[options.cell]
        self.wide = torch.promote_types(inputs.x.dtype, torch.float32)
        self.narrow = self.wide != inputs.x.dtype
        self.scopes = options.scopes.split(",")
        self.by_row = "row" in self.scopes
        self._inputs, self.options = inputs, options
        biases = [inputs.bias_ih, inputs.bias_hh]
        if options.cell != "GRU":
            given = [bias for bias in biases if bias is not None]
            shift = sum(given[1:], given[0]) if given else None
            biases = [None, shift] if options.joint else [shift, None]
        # what is added to the input term, and to the recurrent or joint one
        self.shift_input, self.shift_hidden = biases
        rows = options.min_rows if options.min_rows >= 0 else self.B + 1
        # active rows never grow, so steps with enough of them come first
        self.taking = sum(n >= rows for n in self.sizes)
        self.ragged = self.frames < self.T * self.B
        if self.ragged:
            first = torch.tensor(self.starts[:-1], device="cpu")
            active = inputs.sizes.unsqueeze(1) > torch.arange(self.B, device="cpu")
            places = active.flatten().nonzero().squeeze(1)
            step, row = places // self.B, places % self.B
            last = active.sum(0) - 1
            device = inputs.x.device
            self._places = places.to(device)
            self._last = (first[last] + torch.arange(self.B, device="cpu")).to(device)
            self._before = (first[step - 1] + row)[self.sizes[0] :].to(device)

    def pack(self, x: Tensor) -> Tensor:
        """The frames ``(N, ·)`` of ``(T, B, ·)``."""
        x = x.flatten(0, 1)
        return x.index_select(0, self._places) if self.ragged else x

    def unpack(self, frames: Tensor) -> Tensor:
        """``(T, B, ·)`` with zeros where there is no frame."""
        if not self.ragged:
            return frames.view(self.T, self.B, frames.size(1))
        spread = frames.new_zeros(self.T, self.B, frames.size(1))
        spread.flatten(0, 1).index_copy_(0, self._places, frames)
        return spread

    def last(self, frames: Tensor) -> Tensor:
        """Each row's last frame."""
        return frames.index_select(0, self._last) if self.ragged else frames[-self.B :].clone()

    def add_to_last(self, frames: Tensor, values: Tensor) -> None:
        """Adds to each row's last frame."""
        if self.ragged:
            frames.index_add_(0, self._last, values)
        else:
            frames[-self.B :] += values

    def before(self, frames: Tensor) -> Tensor:
        """The frame before each but those of the first step."""
        return frames.index_select(0, self._before) if self.ragged else frames[: -self.B]

    def source(self, site: int, t: int, taken: Moments) -> Source:
        """Of site 0, 1 or 2, the input, hidden or cell site, at step t."""
        scope, (mean, var) = self.scopes[site], taken
        if scope in ("off", "row"):
            return Source("off" if scope == "off" else "own", mean, var, 0, 0, 0)
        whole = scope == "sequence"
        taking = self.frames >= self.options.min_rows >= 0 if whole else self.taking
        if t < taking:
            return Source("own", mean, var, t, 0, 1)
        if taking:
            return Source("given", mean, var, taking - 1, 0, 0)
        given = self._inputs.constants[2 * site : 2 * site + 2]
        mean, var = [moment for moment in given if moment is not None]
        steps, rows, _ = mean.shape
        skip = rows if steps > 1 else 0
        return Source("given", mean.flatten(0, 1), var.flatten(0, 1), t * skip, int(rows > 1), skip)

    def step(self, hidden: Source, out: Source) -> Step:
        """The variant of the kernels for a step."""
        shifted = self.shift_hidden is not None
        cell, joint = self.options.cell, self.options.joint
        return Step(cell, self.gates, hidden.scope, joint, shifted, out.scope, self.narrow)

    def blocks(self) -> list[tuple[int, int]]:
        """Columns of a term that share a row's statistics, from and to."""
        width, together = self.gates * self.H, 2 * self.H
        return [(0, together), (together, width)] if self.options.cell == "GRU" else [(0, width)]

    def given(self, *tensors: Tensor | None) -> list[Tensor]:
        """Parameters, and in the place of those that are absent something that is not read."""
        return [self._inputs.h0 if tensor is None else tensor for tensor in tensors]

    def launch(self, n: int) -> tuple[tuple[int], dict[str, object]]:
        """The grid for a step of n rows, and how a program goes through its part."""
        how = tile(self.by_row, self.B, self.H, self.wide, self.options.eps)
        grid = (n if self.by_row else triton.cdiv(self.H, how.units),)
        return grid, {"TILE": how, **launch_options(how)}


def tile(by_row: bool, rows: int, units: int, wide: torch.dtype, eps: float) -> Tile:
    """One of a few, so that few variants are compiled, for at most so many rows and units."""
    double = wide == torch.float64
    number = tl.float64 if double else tl.float32
    if by_row:
        most = 512 if double else 1024
        width = max(32, triton.next_power_of_2(units))
        return Tile(1, width <= most, 1, min(width, most), number, eps)
    most = 64 if double else 512
    height = max(16, triton.next_power_of_2(rows))
    one = height <= most
    few = triton.next_power_of_2(triton.cdiv(units, _PROGRAMS))
    # of many rows fewer units fit the registers
    many = 8 if height <= 128 or not one else 4
    return Tile(0, one, height if one else 64, min(many, max(2, few)), number, eps)


def launch_options(how: Tile) -> dict[str, object]:
    """How a program of such blocks is compiled: with so many threads, as was measured on an H200.

    Over rows, and in float64, two numbers a thread; over units four, but of up to 256 units one
    warp, in which sums need no shared memory.
    """
    each = 2 if how.axis == 0 or how.wide == tl.float64 else 8 if how.units <= 256 else 4
    warps = max(1, min(16, how.rows * how.units // (32 * each)))
    # the default is to change, which would be another rounding
    return {"num_warps": warps, "enable_fp_fusion": True}
