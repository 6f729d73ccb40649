"""The update of a layer's population statistics by a minibatch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rnnorm.norm.moments import Moments
from rnnorm.norm.population import Population
from rnnorm.tracing import to_device, unobserved


def update(
    populations: Mapping[str, Population],
    batch: Mapping[str, Moments],
    counts: Mapping[str, Tensor | int],
    step: int,
) -> None:
    """Update the population statistics of every site of a layer by one minibatch.

    The population keeps the unbiased variance (Ioffe & Szegedy 2015, algorithm 2). A new minibatch
    weighs ``max(momentum, 1/n)``, n the number of minibatches that have reached the step; with
    ``momentum=None`` the weight is its number m of rows: the mean is ``Σ m μ / Σ m`` and the
    variance ``Σ m v / Σ (m - 1)``. If all steps share one row, a minibatch's variance is the
    mean of its steps' unbiased variances, weighted by rows. A step with a moment that is not
    finite is left out.

    Args:
        populations: population of each site.
        batch: mean and biased variance ``(T, F)`` of each site.
        counts: number of rows behind each estimate, by site: ``(T,)`` int64 on the CPU, 0 from the
            first step without an estimate on, or one int above 1 for all steps. Sites of the same
            scope have equal counts.
        step: index of the first step.
    """
    by_step = [site for site in batch if not populations[site].shared]
    own, taken = [populations[site] for site in by_step], [batch[site] for site in by_step]
    if by_step and not _update_together(own, taken, counts[by_step[0]], step):
        by_step = []
    for site, moments in batch.items():
        if site not in by_step:
            _update_one(populations[site], moments, counts[site], step)


@torch.no_grad()
def _update_one(population: Population, batch: Moments, counts: Tensor | int, step: int) -> None:
    mean, var = (m.to(population.mean.dtype) for m in batch)
    if isinstance(counts, int):
        counts = torch.full(mean.shape[:1], counts, device=mean.device)
    else:
        counts = to_device(counts, mean.device)
    m = counts.to(mean.dtype)
    var = var * (m / (m - 1).clamp(min=1)).unsqueeze(1)
    finite = (mean.isfinite() & var.isfinite()).all(1)
    counts, m = torch.where(finite, counts, 0), torch.where(finite, m, 0)
    # a weight of 0 would not remove nan
    mean, var = (torch.where(finite.unsqueeze(1), each, 0) for each in (mean, var))
    if population.shared:
        # not a matrix product, which autocast would compute in a narrower dtype
        share = (m / m.sum().clamp(min=1)).unsqueeze(1)
        mean, var = ((share * each).sum(0, keepdim=True) for each in (mean, var))
        counts, step = counts.sum(0, keepdim=True), 0
    room = max(0, min(counts.size(0), len(population) - step))
    mean, var, counts = mean[:room], var[:room], counts[:room]
    reached, taken = slice(step, step + room), counts > 0
    population.rows[reached] += counts
    population.num_batches_tracked[reached] += taken
    rows, batches = population.rows[reached], population.num_batches_tracked[reached]
    m = counts.to(mean.dtype)
    if population.momentum is None:
        mean_weight = m / rows.clamp(min=1)
        var_weight = (m - 1) / (rows - batches).clamp(min=1)
    else:
        mean_weight = torch.ones_like(m) / batches.clamp(min=1)
        mean_weight = var_weight = mean_weight.clamp(min=population.momentum)
    kept = (population.mean, mean, mean_weight), (population.var, var, var_weight)
    for old, new, weight in kept:
        old[reached].lerp_(new, torch.where(taken, weight, 0).unsqueeze(1))


def _update_together(
    populations: Sequence[Population], batch: Sequence[Moments], count: Tensor | int, step: int
) -> bool:
    """Update several populations in few operators, and tell whether that was possible."""
    means, variances = ([pair[k] for pair in batch] for k in range(2))
    momentum, horizon, steps = populations[0].momentum, len(populations[0]), means[0].size(0)
    alike = all([p.momentum == momentum and len(p) == horizon for p in populations])
    buffers = [buffer for p in populations for buffer in p.rows_of(0, horizon)]
    moments = [*means, *variances, *[b for b in buffers if b.is_floating_point()]]
    seen = [*moments, *buffers, count if isinstance(count, Tensor) else None]
    # torch.amax refuses rows without features
    if not means[0].numel() or len({m.dtype for m in moments}) > 1:
        return False
    if not (alike and momentum and unobserved(seen)):
        return False
    if isinstance(count, Tensor):
        # rows never become more from step to step
        count = count[: count.count_nonzero()]
        steps = count.size(0)
    room = min(steps, horizon - step)
    if room <= 0:
        return False
    means, variances = ([m[:room] for m in each] for each in (means, variances))
    count = count[:room] if isinstance(count, Tensor) else count
    own = [population.rows_of(step, step + room) for population in populations]
    _update_foreach(own, means, variances, count, momentum)
    return True


def _update_foreach(
    own: Sequence[Sequence[Tensor]],
    means: Sequence[Tensor],
    variances: Sequence[Tensor],
    count: Tensor | int,
    momentum: float,
) -> None:
    """Update the buffers ``own`` of several populations, without reading a number from a GPU."""
    own_means, own_variances, rows, batches = (list(each) for each in zip(*own, strict=True))
    # a mean that is not finite makes the variance so
    taken = [var.amax(1) < math.inf for var in variances]
    added = [each.to(torch.int64) for each in taken]
    torch._foreach_add_(batches, added)
    if isinstance(count, Tensor):
        count = to_device(count, means[0].device)
        more = torch._foreach_mul(added, [count] * len(added))
        m = count.to(means[0].dtype)
        factor = (m / (m - 1)).unsqueeze(1)
        unbiased = torch._foreach_mul(list(variances), [factor] * len(variances))
    else:
        more = torch._foreach_mul(added, count)
        unbiased = torch._foreach_mul(list(variances), count / (count - 1))
    torch._foreach_add_(rows, more)
    weights = [each.to(means[0].dtype) for each in batches]
    torch._foreach_clamp_min_(weights, 1)
    torch._foreach_reciprocal_(weights)
    torch._foreach_clamp_min_(weights, momentum)
    kept = [*own_means, *own_variances]
    new = [
        torch.where(each.unsqueeze(1), n, old)
        for each, n, old in zip(2 * taken, [*means, *unbiased], kept, strict=True)
    ]
    torch._foreach_lerp_(kept, new, 2 * [each.unsqueeze(1) for each in weights])
