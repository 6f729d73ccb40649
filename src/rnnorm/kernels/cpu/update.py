"""The update of a layer's population statistics in one call of the compiled library."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from rnnorm.kernels.cpu import library
from rnnorm.kernels.cpu.c_struct import COMPUTED
from rnnorm.norm import update as by_operators
from rnnorm.norm.moments import Moments
from rnnorm.norm.population import Population
from rnnorm.tracing import unobserved


def update(
    populations: Mapping[str, Population],
    batch: Mapping[str, Moments],
    counts: Mapping[str, Tensor | int],
    step: int,
) -> None:
    """Update the population statistics of every site of a layer as ``norm.update.update`` does.

    Args:
        populations: populations by site.
        batch: mean and biased variance ``(T, F)`` that each site took.
        counts: number of rows behind the estimates of each site, ``(T,)`` or of all steps.
        step: index of the first step.
    """
    own = {site: populations[site].rows_of(0, len(populations[site])) for site in batch}
    if all([_covers(populations[s], own[s], batch[s], counts[s]) for s in batch]):
        increment_version([buffer for buffers in own.values() for buffer in buffers])
        sites = (library.CPopulation * len(batch))()
        for struct, (site, (mean, var)) in zip(sites, batch.items(), strict=True):
            fill(struct, populations[site], own[site], step, len(mean))
            struct.taken_mean, struct.taken_var = mean.data_ptr(), var.data_ptr()
            count = counts[site]
            struct.counts = count.data_ptr() if isinstance(count, Tensor) else None
            struct.count = 0 if isinstance(count, Tensor) else count
        # a call's statistics have one dtype
        library.update(sites, any([mean.dtype == torch.float64 for mean, _ in batch.values()]))
    else:
        by_operators.update(populations, batch, counts, step)


def fill(
    struct: library.CPopulation, population: Population, own: list[Tensor], step: int, steps: int
) -> None:
    """Describe the rows of a population from ``step`` on, or its one row, to the library.

    Args:
        struct: struct of the library; its fields of taken statistics and counts are not written.
        population: the population.
        own: all buffers of the population, in the order of ``BUFFERS``.
        step: index of the first step.
        steps: number of steps; those beyond the last row are left out.
    """
    rows, features = own[0].shape
    first = 0 if population.shared else min(step, rows)
    mean, var, counts, batches = own
    at = first * features * mean.element_size()
    struct.mean, struct.var = mean.data_ptr() + at, var.data_ptr() + at
    struct.rows, struct.batches = counts.data_ptr() + 8 * first, batches.data_ptr() + 8 * first
    struct.steps, struct.features = min(steps, rows - first), features
    struct.momentum = -1.0 if population.momentum is None else population.momentum


def _covers(population: Population, own: list[Tensor], taken: Moments, count: Tensor | int) -> bool:
    """Tell whether the library can read and write the tensors of a site's update."""
    mean, var, rows, batches = own
    given = [count] if isinstance(count, Tensor) else []
    # a traced number of steps must not be read
    if not unobserved([*own, *taken, *given]):
        return False
    dtype, features, steps = mean.dtype, mean.shape[1], len(taken[0])
    return (
        all([t.is_cpu and t.is_contiguous() and not t.is_inference() for t in own])
        and dtype in COMPUTED
        and all([t.dtype is dtype and t.is_cpu and t.is_contiguous() for t in (var, *taken)])
        and rows.dtype is batches.dtype is torch.int64
        and var.shape == mean.shape
        and rows.shape == batches.shape == mean.shape[:1]
        and taken[0].shape == taken[1].shape == (steps, features)
        and all([c.dtype is torch.int64 and c.is_contiguous() and len(c) >= steps for c in given])
        # what several steps took has to be merged first
        and not (population.shared and steps > 1)
    )
