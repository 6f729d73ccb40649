"""The look-up of the population's statistics of one layer, in one launch for all sites.

Which row serves a step is found on the GPU at each call. The host would have to wait for the GPU to
know it, and nothing tells the host of every change: ``.data``, a collective operation and a
replayed CUDA graph change a buffer without a trace.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from rnnorm.norm.moments import Moments
from rnnorm.norm.population import Population

# numbers that a program copies or compares at once
_BLOCK = 1024
# Triton 3.9 warns where the second is not given; it matters to the update's averages alone
OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}


def look_up(
    populations: Mapping[str, Population], first: int | Tensor, steps: int
) -> dict[str, Moments]:
    """Return what ``Population.consecutive`` returns of each of one to three populations.

    Args:
        populations: the populations by site, with contiguous buffers on one device.
        first: index of the first step, or ``(B,)`` int64 on the same device.
        steps: number of steps.
    """
    ages = first if isinstance(first, Tensor) else None
    begin, rows = (first, 1) if isinstance(first, int) else (0, first.size(0))
    found, sites, most = {}, [], 0
    for site, population in populations.items():
        mean, var, _, counts = population.rows_of(0, len(population))
        kept = min(steps, max(1, len(mean) - begin))
        both = mean.new_empty(2, kept, rows, mean.size(1))
        found[site] = (both[0], both[1])
        sites.append((counts, mean, var, both, len(mean), mean.size(1), kept))
        most = max(most, kept)
    three = [each for site in (*sites, sites[0], sites[0])[:3] for each in site]
    # Triton launches on the current device, which need not be the tensors'
    with torch.cuda.device_of(sites[0][0]):  # type: ignore[no-untyped-call]
        _look_up[(most * rows, len(sites))](
            *three, sites[0][0] if ages is None else ages, begin, rows,
            AGES=ages is not None, BLOCK=_BLOCK, **OPTIONS,
        )  # fmt: skip
    return found


@triton.jit(
    do_not_specialize=[f"{name}{k}" for name in ("length", "width", "kept") for k in "012"]
    + ["first", "rows"]
)
def _look_up(
    counts0, mean0, var0, both0, length0, width0, kept0,
    counts1, mean1, var1, both1, length1, width1, kept1,
    counts2, mean2, var2, both2, length2, width2, kept2,
    ages, first, rows, AGES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    site = tl.program_id(1)
    frame = tl.program_id(0)
    k = frame // rows
    step = first + k.to(tl.int64)
    if AGES:
        step = tl.load(ages + frame % rows) + k
    if site == 0:
        _copy(counts0, mean0, var0, both0, length0, width0, kept0, k, step, rows, BLOCK)
    elif site == 1:
        _copy(counts1, mean1, var1, both1, length1, width1, kept1, k, step, rows, BLOCK)
    else:
        _copy(counts2, mean2, var2, both2, length2, width2, kept2, k, step, rows, BLOCK)


@triton.jit
def _copy(counts, mean, var, both, length, width, kept, k, step, rows, BLOCK: tl.constexpr):
    """Copy the row that serves a step, for the k-th of ``kept`` steps."""
    if k < kept:
        row = _serving(counts, length, step, BLOCK)
        to, plane = tl.program_id(0).to(tl.int64) * width, kept.to(tl.int64) * rows * width
        for start in range(0, width, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            own = cols < width
            tl.store(both + to + cols, tl.load(mean + row * width + cols, own), own)
            tl.store(both + plane + to + cols, tl.load(var + row * width + cols, own), own)


@triton.jit
def _serving(counts, length, step, BLOCK: tl.constexpr):
    """Return the row that serves a step, by the rule of ``Population.at``."""
    row = tl.minimum(step, length - 1)
    if tl.load(counts + row) <= 0:
        earlier, earliest = row * 0 - 1, row * 0 + length
        for start in range(0, length, BLOCK):
            rows = start + tl.arange(0, BLOCK).to(tl.int64)
            counted = tl.load(counts + rows, rows < length, 0) > 0
            earlier = tl.maximum(earlier, tl.max(tl.where(counted & (rows < row), rows, -1), 0))
            earliest = tl.minimum(earliest, tl.min(tl.where(counted, rows, length), 0))
        row = tl.where(earlier >= 0, earlier, tl.where(earliest < length, earliest, row))
    return row
