"""The update of a layer's population statistics by a minibatch, in one launch for all sites."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from rnnorm.kernels.triton.look_up import OPTIONS
from rnnorm.norm.moments import Moments
from rnnorm.norm.population import Population
from rnnorm.tracing import to_device

# numbers that a program reads at once
_BLOCK = 1024


def update(
    populations: Mapping[str, Population],
    batch: Mapping[str, Moments],
    counts: Tensor | int,
    step: int,
) -> None:
    """Update one to three populations as ``rnnorm.norm.update.update`` does.

    Args:
        populations: the populations by site, alike in momentum and horizon, each with a row for
            each step, and with contiguous buffers on one device.
        batch: contiguous mean and biased variance ``(T, F)`` of each of these sites, among others.
        counts: number of rows behind each step's estimate, ``(T,)`` on the CPU, or of all steps.
        step: index of the first step.
    """
    first = next(iter(populations.values()))
    # other sites may have one statistic for all steps
    steps = len(batch[next(iter(populations))][0])
    # rows never become more from step to step
    steps = steps if isinstance(counts, int) else int(counts.count_nonzero())
    room = min(steps, len(first) - step)
    if room <= 0:
        return
    sites, written = [], []
    for site, population in populations.items():
        buffers = population.rows_of(0, len(population))
        sites.append((*buffers, *batch[site], buffers[0].size(1)))
        written += buffers
    three = [each for site in (*sites, sites[0], sites[0])[:3] for each in site]
    if isinstance(counts, Tensor):
        table, count = to_device(counts, written[0].device), 0
    else:
        # an absent table is not read, so any tensor serves
        table, count = written[2], counts
    # Triton launches on the current device, which need not be the tensors'
    with torch.cuda.device_of(written[0]):  # type: ignore[no-untyped-call]
        _update[(room, len(sites))](
            *three, table, count, step,
            EACH=isinstance(counts, Tensor), MOMENTUM=first.momentum, BLOCK=_BLOCK, **OPTIONS,
        )  # fmt: skip
    # a kernel writes memory unseen by autograd
    torch.autograd.graph.increment_version(written)


@triton.jit(do_not_specialize=["width0", "width1", "width2", "count", "step"])
def _update(
    mean0, var0, rows0, batches0, new_mean0, new_var0, width0,
    mean1, var1, rows1, batches1, new_mean1, new_var1, width1,
    mean2, var2, rows2, batches2, new_mean2, new_var2, width2,
    counts, count, step, EACH: tl.constexpr, MOMENTUM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(0).to(tl.int64)
    site = tl.program_id(1)
    m = count.to(tl.int64)
    if EACH:
        m = tl.load(counts + k)
    to = step + k
    if site == 0:
        _row(mean0, var0, rows0, batches0, new_mean0, new_var0, width0, k, to, m, MOMENTUM, BLOCK)
    elif site == 1:
        _row(mean1, var1, rows1, batches1, new_mean1, new_var1, width1, k, to, m, MOMENTUM, BLOCK)
    else:
        _row(mean2, var2, rows2, batches2, new_mean2, new_var2, width2, k, to, m, MOMENTUM, BLOCK)


@triton.jit
def _row(
    mean, var, rows, batches, new_mean, new_var, width, k, to, m,
    MOMENTUM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update the row ``to`` of a population by the k-th estimate, which is of m rows."""
    unusable = 0
    for start in range(0, width, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        a = tl.load(new_mean + k * width + cols, cols < width, 0.0)
        b = tl.load(new_var + k * width + cols, cols < width, 0.0)
        # nan is not below infinity either
        finite = (tl.abs(a) < float("inf")) & (tl.abs(b) < float("inf"))
        unusable += tl.sum(1 - finite.to(tl.int32), 0)
    if unusable == 0:
        seen = tl.load(rows + to) + m
        minibatches = tl.load(batches + to) + 1
        tl.store(rows + to, seen)
        tl.store(batches + to, minibatches)
        number = m.to(mean.dtype.element_ty)
        if MOMENTUM is None:
            mean_weight = number / seen.to(number.dtype)
            var_weight = (number - 1) / tl.maximum(seen - minibatches, 1).to(number.dtype)
        else:
            least = number * 0 + MOMENTUM
            mean_weight = tl.maximum((number * 0 + 1) / minibatches.to(number.dtype), least)
            var_weight = mean_weight
        unbiased = number / tl.maximum(number - 1, number * 0 + 1)
        for start in range(0, width, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            own, at = cols < width, k * width + cols
            new = tl.load(new_mean + at, own).to(number.dtype)
            _mix(mean + to * width + cols, new, mean_weight, own)
            new = tl.load(new_var + at, own).to(number.dtype)
            _mix(var + to * width + cols, new * unbiased, var_weight, own)


@triton.jit
def _mix(at, new, weight, own):
    """Move numbers towards new ones by a weight, exactly to them if it is one."""
    old = tl.load(at, own)
    apart = new - old
    tl.store(at, tl.where(weight < 0.5, old + weight * apart, new - (1 - weight) * apart), own)
