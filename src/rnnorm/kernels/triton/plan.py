"""How one call goes over its frames: where steps begin, whose statistics serve, which tiles."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rnnorm.kernels.inputs import Inputs, Options, Sites
from rnnorm.kernels.triton.graphs import float32_precision
from rnnorm.kernels.triton.loop import Product
from rnnorm.kernels.triton.step import Step
from rnnorm.kernels.triton.tile import Tile
from rnnorm.norm.moments import Moments
from rnnorm.tracing import to_device

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
        self.gates = options.gates
        self.wide = torch.promote_types(inputs.x.dtype, torch.float32)
        self.narrow = self.wide != inputs.x.dtype
        self.scopes = options.by_site
        self.by_row = "row" in self.scopes
        self._inputs, self.options = inputs, options
        biases = [inputs.bias_ih, inputs.bias_hh]
        if not options.separate:
            given = [bias for bias in biases if bias is not None]
            shift = sum(given[1:], given[0]) if given else None
            biases = [None, shift] if options.joint else [shift, None]
        # what is added to the input term, and to the recurrent or joint one
        self.shift_input, self.shift_hidden = biases
        fewest = options.min_rows if options.min_rows >= 0 else self.B + 1
        # active rows never grow, so steps with enough of them come first
        self.taking = sum(n >= fewest for n in self.sizes)
        self.ragged = self.frames < self.T * self.B
        if self.ragged:
            sizes, rows = inputs.sizes, torch.arange(self.B, device="cpu")
            first = torch.tensor(self.starts, device="cpu")
            active = sizes.unsqueeze(1) > rows
            places = active.flatten().nonzero().squeeze(1)
            last = first[active.sum(0) - 1] + rows
            before = torch.arange(self.sizes[0], self.frames, device="cpu")
            before -= sizes[:-1].repeat_interleave(sizes[1:])
            tables = (first, places, last, before)
            parts = to_device(torch.cat(tables), inputs.x.device)
            self.first_frames, self._places, self._last, self._before = torch.split(
                parts, [len(table) for table in tables]
            )
        else:
            # made there, as a copy from the host could not be captured
            self.first_frames = torch.arange(self.T + 1, device=inputs.x.device) * self.B

    def runs(self, *, back: bool) -> list[tuple[int, int]]:
        """Steps that are one launch, from and to: each alone, or many where that takes less time.

        Args:
            back: of the backward pass.
        """
        if not self._looped(back):
            return [(t, t + 1) for t in range(self.T)]
        # the first one follows no frame, and those that take statistics are of another variant
        starts = {
            0,
            min(1, self.T),
            self.taking,
        }
        starts.update(*map(self.kept, Sites._fields))
        return list(pairwise(sorted({*starts, self.T})))

    def kept(self, site: str) -> list[int]:
        """The first step, if any, that is served by the constants of an earlier one."""
        mean, _ = getattr(self._inputs.constants, site)
        used = mean is not None and not self.taking and 1 < len(mean) < self.T
        return [len(mean)] if used else []

    def _looped(self, back: bool) -> bool:
        """Whether a launch has many steps: as was measured on an H200, with up to 128 rows.

        Ragged batches are compared with launches from the host, others with those of a graph.
        """
        units = self.H
        if self.by_row:
            return units <= (256 if self.ragged else 128)
        (programs,), how = self.launch(self.B)
        if self.B > 128 or not how["TILE"].one or programs > _together(self._inputs.x.device):
            return False
        return self.ragged or units <= (128 if back else 512)

    def count(self) -> Tensor:
        """Of programs that have come, so far none."""
        return self._inputs.x.new_zeros(1, dtype=torch.int32)

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

    def source(self, site: str, t: int, taken: Moments) -> Source:
        """Return where a site, a field of ``Sites``, has its statistics at step t."""
        scope, (mean, var) = getattr(self.scopes, site), taken
        if scope in ("off", "row"):
            return Source("off" if scope == "off" else "own", mean, var, 0, 0, 0)
        whole = scope == "sequence"
        taking = self.frames >= self.options.min_rows >= 0 if whole else self.taking
        if t < taking:
            return Source("own", mean, var, t, 0, 1)
        if taking:
            return Source("given", mean, var, taking - 1, 0, 0)
        mean, var = getattr(self._inputs.constants, site)
        steps, rows, _ = mean.shape
        row, skip = min(t, steps - 1) * rows, rows if t < steps - 1 else 0
        return Source("given", mean.flatten(0, 1), var.flatten(0, 1), row, int(rows > 1), skip)

    def sites(self, t: int, taken: Sites) -> tuple[Source, Source, list[Tensor]]:
        """Return where the hidden and cell site have their statistics, and the tensors of both."""
        hidden, out = self.source("hidden", t, taken.hidden), self.source("cell", t, taken.cell)
        given = self._inputs
        gamma, shift, gamma_out, shift_out = [
            # in the place of those that are absent something that is not read
            given.h0 if tensor is None else tensor
            for tensor in (given.gamma_hidden, self.shift_hidden, given.gamma_cell, given.beta_cell)
        ]
        first = [gamma, shift, hidden.mean, hidden.var]
        return hidden, out, [*first, gamma_out, shift_out, out.mean, out.var]

    def step(self, hidden: Source, out: Source) -> Step:
        """The variant of the kernels for a step."""
        shifted = self.shift_hidden is not None
        cell, joint = self.options.cell, self.options.joint
        return Step(cell, self.gates, hidden.scope, joint, shifted, out.scope, self.narrow)

    def blocks(self) -> list[tuple[int, int]]:
        """Return the columns of a term that share a row's statistics, from and to."""
        widths = [count * self.H for count in self.options.gate_blocks]
        return list(pairwise([0, *accumulate(widths)]))

    def launch(self, n: int, *, looped: bool = False) -> tuple[tuple[int], dict[str, Any]]:
        """The grid for n rows of a step, or of many in a loop, and how a program does its part."""
        how = tile(self.by_row, self.B, self.H, self.wide, self.options.eps)
        grid = (n if self.by_row else triton.cdiv(self.H, how.units),)
        if not looped:
            return grid, {"TILE": how, **launch_options(how)}
        return grid, {
            "TILE": how,
            "P": product(how, self.options.rectified),
            "launch_cooperative_grid": not self.by_row,
            **launch_options(how, looped=True),
        }


def product(how: Tile, rectified: bool) -> Product:
    """Choose how a program multiplies blocks, as was measured on an H200."""
    double = how.wide == tl.float64
    if how.axis == 1:
        return Product((16 if double else 32) if how.units <= 128 else 8, "ieee")
    depth = 32 if double or how.rows > 64 else 64
    if torch.version.hip:
        # which has no other for each of its GPUs
        return Product(depth, "ieee")
    if float32_precision() in ("tf32", "high", "medium"):
        return Product(depth, "tf32")
    # three products of tf32 are as exact, except where a number is infinite
    return Product(depth, "ieee" if rectified else "tf32x3")


def _together(device: torch.device) -> int:
    """How many programs are surely on a GPU at once; an interpreter has one after another."""
    if device.type == "cpu":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def tile(by_row: bool, rows: int, units: int, wide: torch.dtype, eps: float) -> Tile:
    """One of a few, so that few variants are compiled, for at most so many rows and units."""
    double = wide == torch.float64
    number = tl.float64 if double else tl.float32
    multiple = min(16, units & -units)
    if by_row:
        most = 512 if double else 1024
        width = max(32, triton.next_power_of_2(units))
        return Tile(1, width <= most, 1, min(width, most), multiple, number, eps)
    most = 64 if double else 512
    height = max(16, triton.next_power_of_2(rows))
    one = height <= most
    few = triton.next_power_of_2(triton.cdiv(units, _PROGRAMS))
    # of many rows fewer units fit the registers
    many = 8 if height <= 128 or not one else 4
    height = height if one else 64
    return Tile(0, one, height, min(many, max(2, few)), multiple, number, eps)


def launch_options(how: Tile, *, looped: bool = False) -> dict[str, Any]:
    """How a program of such blocks is compiled: with so many threads, as was measured on an H200.

    Over rows, and in float64, two numbers a thread; over units four, but of up to 256 units one
    warp, in which sums need no shared memory. One that multiplies has four or eight warps.
    """
    if looped:
        warps = 8 if how.rows > 64 else 4
    else:
        each = 2 if how.axis == 0 or how.wide == tl.float64 else 8 if how.units <= 256 else 4
        warps = max(1, min(16, how.rows * how.units // (32 * each)))
    # the default is to change, which would be another rounding
    return {"num_warps": warps, "enable_fp_fusion": True}
