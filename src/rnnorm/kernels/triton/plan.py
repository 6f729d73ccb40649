"""The plan of one call: where steps begin, which statistics they use, and how they are launched."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from rnnorm.kernels.cuda import passes
from rnnorm.kernels.cuda.layout import Layout
from rnnorm.kernels.inputs import Inputs, Options, Sites
from rnnorm.kernels.triton import tile_sizes
from rnnorm.kernels.triton.block import StepVariant
from rnnorm.kernels.triton.generate import equations
from rnnorm.norm.moments import Moments
from rnnorm.tracing import to_device


class Source(NamedTuple):
    """Where a step loads the statistics of a site, or stores the statistics of its rows.

    Args:
        scope: "own", "given" or "off".
        mean: matrix of means, with one row or more for each step.
        var: matrix of variances, with one row or more for each step.
        row: row of the two matrices for the step's first row.
        pitch: offset of this row from one row of the batch to the next.
        skip: offset of this row from one step to the next.
    """

    scope: str
    mean: Tensor
    var: Tensor
    row: int
    pitch: int
    skip: int


class Plan:
    """The plan of a call, which both passes derive from its sizes and options.

    A frame is an active row at a step; all frames are packed one after another, step after step.

    Args:
        inputs: inputs of both passes.
        options: options of both passes.
        cuda: whether the kernels in CUDA C++ run all steps, however few.
    """

    def __init__(self, inputs: Inputs, options: Options, *, cuda: bool = False) -> None:
        self.sizes: list[int] = inputs.sizes.tolist()
        self.starts = [0, *accumulate(self.sizes)]
        self.T, self.B, _ = inputs.x.shape
        #: units of the cell, and of h, which has fewer if it is projected
        self.H, self.H_out = inputs.hidden_size, inputs.h0.size(1)
        #: whether the recurrent weight is a vector
        self.independent = inputs.weight_hh.dim() == 1
        self.frames = self.starts[-1]
        self.gates = options.gates
        self.wide = torch.promote_types(inputs.x.dtype, torch.float32)
        self.given = inputs.x.dtype
        self.narrow = self.wide != self.given
        self.scopes = options.by_site
        kinds = Sites._make([scope.partition("-")[0] for scope in self.scopes])
        #: by site, whether rows are normalised by themselves
        self.row_sites = Sites._make([kind in ("row", "rms") for kind in kinds])
        #: whether the steps normalise rows by themselves, and whether by their root mean square
        self.by_row, self.rms = any(self.row_sites[1:]), "rms" in kinds[1:]
        #: whether there is recurrent dropout
        self.drops = any([mask is not None for mask in inputs.masks])
        self.cuda = cuda
        #: epsilon of the steps: a site that is not normalised has another
        self.eps = options.eps.hidden if self.scopes.hidden != "off" else options.eps.cell
        self.inputs, self.options = inputs, options
        biases = [inputs.bias_ih, inputs.bias_hh]
        if not options.separate:
            given = [bias for bias in biases if bias is not None]
            shift = sum(given[1:], given[0]) if given else None
            biases = [None, shift] if options.joint else [shift, None]
        # added to the input term, and to the recurrent or joint one
        self.shift_input, self.shift_hidden = biases
        fewest = options.min_rows if options.min_rows >= 0 else self.B + 1
        # active rows never grow, so steps with enough of them come first
        self.taking = sum(n >= fewest for n in self.sizes)
        self.ragged = self.frames < self.T * self.B
        #: whether a statistic is taken at every step, and of all frames
        self.takes_all = self.taking == self.T and self.frames >= fewest
        if self.ragged:
            sizes, rows = inputs.sizes, torch.arange(self.B, device="cpu")
            first = torch.tensor(self.starts, device="cpu")
            active = sizes.unsqueeze(1) > rows
            frames = active.flatten().nonzero().squeeze(1)
            last = first[active.sum(0) - 1] + rows
            before = torch.arange(self.sizes[0], self.frames, device="cpu")
            before -= sizes[:-1].repeat_interleave(sizes[1:])
            tables = (first, frames, last, before)
            parts = to_device(torch.cat(tables), inputs.x.device)
            self.first_frames, self._active, self._last, self._before = torch.split(
                parts, [len(table) for table in tables]
            )
        else:
            self.first_frames = _dense_frames(self.T, self.B, inputs.x.device)

    def runs(self, layout: Layout | None = None, *, back: bool) -> list[tuple[int, int]]:
        """Return the steps of each launch, from and to: one, or many where that takes less time.

        Args:
            layout: what ``layout`` returned for the pass.
            back: whether the backward pass is launched.
        """
        if layout is None and not self._looped(back):
            return [(t, t + 1) for t in range(self.T)]
        # steps that take statistics are another variant
        starts = {0, self.taking}
        if layout is None:
            # the first step follows no frame
            starts.add(min(1, self.T))
        starts.update(*map(self.kept, Sites._fields))
        return list(pairwise(sorted({*starts, self.T})))

    def layout(self, *, back: bool) -> Layout | None:
        """Return the layout of launches in CUDA C++, None if Triton's kernels run instead.

        Raises:
            UncoveredError: if ``cuda`` is set and the kernels in CUDA C++ do not run the call.
        """
        if self.cuda:
            return passes.asked_layout(self.inputs, self.options, back=back)
        return passes.layout_of(self.inputs, self.options, back=back, ragged=self.ragged)

    def kept(self, site: str) -> list[int]:
        """Return the first step, if any, that uses the constants of an earlier one."""
        mean, _ = getattr(self.inputs.constants, site)
        used = mean is not None and not self.taking and 1 < len(mean) < self.T
        return [len(mean)] if used else []

    def _looped(self, back: bool) -> bool:
        """Tell whether a launch has many steps, as was measured on an H200, with up to 128 rows.

        Ragged batches were compared with launches from the host, others with those of a graph. A
        cell whose recurrent weight is a vector was not measured.
        """
        if self.inputs.weight_hr is not None:
            return False
        units = self.H
        if self.by_row and not self.independent:
            return units <= (256 if self.ragged else 128)
        (programs,), how = self.launch(self.B)
        if self.independent:
            # no program reads what another wrote
            return bool(how["TILE"].one)
        most = tile_sizes.programs_at_once(self.inputs.x.device)
        if self.B > 128 or not how["TILE"].one or programs > most:
            return False
        return self.ragged or units <= (128 if back else 512)

    def count(self) -> Tensor:
        """Return a zeroed counter of arrived programs."""
        return self.inputs.x.new_zeros(1, dtype=torch.int32)

    def pack(self, x: Tensor) -> Tensor:
        """Return the frames ``(N, ·)`` of ``(T, B, ·)``."""
        x = x.flatten(0, 1)
        return x.index_select(0, self._active) if self.ragged else x

    def unpack(self, frames: Tensor) -> Tensor:
        """Return ``(T, B, ·)`` of the frames ``(N, ·)``, with zeros in the padding."""
        if not self.ragged:
            return frames.view(self.T, self.B, frames.size(1))
        spread = frames.new_zeros(self.T, self.B, frames.size(1))
        spread.flatten(0, 1).index_copy_(0, self._active, frames)
        return spread

    def last(self, frames: Tensor) -> Tensor:
        """Return each row's last frame."""
        return frames.index_select(0, self._last) if self.ragged else frames[-self.B :].clone()

    def add_to_last(self, frames: Tensor, values: Tensor) -> None:
        """Add values to each row's last frame."""
        if self.ragged:
            frames.index_add_(0, self._last, values)
        else:
            frames[-self.B :] += values

    def before(self, frames: Tensor) -> Tensor:
        """Return the frame before each frame, from the second step on."""
        return frames.index_select(0, self._before) if self.ragged else frames[: -self.B]

    def seen(self, h: Tensor, frames: slice) -> Tensor:
        """Return h of the step before each frame ``(n, H)``, as the recurrent product reads it.

        Args:
            h: h of the step before, or the gradient of what the product reads.
            frames: the frames.
        """
        reset, mask = self.inputs.reset, self.inputs.mask_hidden
        if mask is not None:
            mask = self.pack(mask.expand(self.T, self.B, -1))[frames]
            h = h * (mask.to(h.dtype) * self.options.scale_hidden)
        if reset is not None:
            h = h.masked_fill(self.pack(reset.unsqueeze(2))[frames], 0.0)
        return h

    def source(self, site: str, t: int, taken: Moments) -> Source:
        """Return where a site, a field of ``Sites``, has its statistics at step t."""
        scope, (mean, var) = getattr(self.scopes, site), taken
        if scope == "off" or getattr(self.row_sites, site):
            return Source("off" if scope == "off" else "own", mean, var, 0, 0, 0)
        whole = scope == "sequence"
        taking = self.frames >= self.options.min_rows >= 0 if whole else self.taking
        if t < taking:
            return Source("own", mean, var, t, 0, 1)
        if taking:
            return Source("given", mean, var, taking - 1, 0, 0)
        mean, var = getattr(self.inputs.constants, site)
        steps, rows, _ = mean.shape
        row, skip = min(t, steps - 1) * rows, rows if t < steps - 1 else 0
        return Source("given", mean.flatten(0, 1), var.flatten(0, 1), row, int(rows > 1), skip)

    def sites(self, t: int, taken: Sites) -> tuple[Source, Source, list[Tensor]]:
        """Return where the hidden and cell site have their statistics, and the tensors of both."""
        hidden, out = self.source("hidden", t, taken.hidden), self.source("cell", t, taken.cell)
        given = self.inputs
        gamma, shift, gamma_out, shift_out = [
            # an absent tensor is not read, so any other serves
            given.h0 if tensor is None else tensor
            for tensor in (given.gamma_hidden, self.shift_hidden, given.gamma_cell, given.beta_cell)
        ]
        first = [gamma, shift, hidden.mean, hidden.var]
        return hidden, out, [*first, gamma_out, shift_out, out.mean, out.var]

    def variant(self, hidden: Source, out: Source) -> StepVariant:
        """Return the variant of the kernels for a step."""
        given = self.options
        return StepVariant(
            gates=self.gates,
            equations=None if self.cuda else equations(given.cell),
            split=len(given.gate_blocks) > 1,
            hidden=hidden.scope,
            joint=given.joint,
            shifted=self.shift_hidden is not None,
            out=out.scope,
            narrow=self.narrow,
        )

    def blocks(self, site: str) -> list[tuple[int, int]]:
        """Return the columns of a site, a field of ``Sites``, that share a row's statistics."""
        if site == "cell":
            return [(0, self.H)]
        count = self.options.blocks_of(getattr(self.scopes, site))
        # a statistic for each block of the cell, else for all gates or for each
        gates = self.options.gate_blocks
        if count != len(gates):
            gates = (self.gates // count,) * count
        return list(pairwise([0, *accumulate(each * self.H for each in gates)]))

    def launch(self, n: int, *, looped: bool = False) -> tuple[tuple[int], dict[str, Any]]:
        """Return the grid and the compile options for n rows, of one step or of many in a loop."""
        how = tile_sizes.choose_tile(self.by_row, self.B, self.H, self.wide, self.eps)
        grid = (n if self.by_row else triton.cdiv(self.H, how.units),)
        if not looped:
            return grid, {"TILE": how, **tile_sizes.launch_options(how)}
        return grid, {
            "TILE": how,
            "P": None
            if self.independent
            else tile_sizes.choose_product(how, self.options.rectified),
            "launch_cooperative_grid": not (self.by_row or self.independent),
            **tile_sizes.launch_options(how, looped=True),
        }


def _dense_frames(T: int, B: int, device: torch.device) -> Tensor:
    """Return the first frame of each step of a padded batch and of the one after the last."""
    stream = 0
    if device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            # a graph's memory is no other call's
            return torch.arange(T + 1, device=device) * B
        # another stream might read it before it is written
        stream = torch.cuda.current_stream(device).cuda_stream
    return _kept_frames(T, B, device, stream)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _kept_frames(T: int, B: int, device: torch.device, stream: int) -> Tensor:
    return torch.arange(T + 1, device=device) * B
