"""One minibatch taken in at every site: as ``Population.update``, in few operators where it can."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from rnnorm.norm.moments import Moments
from rnnorm.norm.population import Population
from rnnorm.tracing import unobserved


def update(
    populations: Mapping[str, Population],
    batch: Mapping[str, Moments],
    counts: Mapping[str, Tensor | int],
    step: int,
) -> None:
    """Takes in one minibatch at every site of a layer.

    Args:
        populations: by site.
        batch: as that of ``Population.update``, by site.
        counts: likewise.
        step: index of the first step.
    """
    whole = {s: n for s, n in counts.items() if isinstance(n, int) and not populations[s].shared}
    own, taken = [populations[site] for site in whole], [batch[site] for site in whole]
    # they are of one scope, so of as many rows
    if whole and not _update_whole(own, taken, max(whole.values()), step):
        whole = {}
    for site, moments in batch.items():
        if site not in whole:
            populations[site].update(moments, counts[site], step)


# an operator takes longer over a number than over a tensor that holds it
@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _number(value: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor([value], dtype=dtype, device="cpu")


def _update_whole(
    populations: Sequence[Population], batch: Sequence[Moments], count: int, step: int
) -> bool:
    """The same in few operators, where nothing is left out; tells whether it did."""
    means, variances = ([pair[k] for pair in batch] for k in range(2))
    momentum, horizon, steps = populations[0].momentum, len(populations[0]), len(means[0])
    stop = min(step + steps, horizon)
    alike = all([p.momentum == momentum and len(p) == horizon for p in populations])
    if not (alike and momentum) or stop <= step or not means[0].is_cpu:
        return False
    own = [population.rows_of(step, stop) for population in populations]
    own_means, own_variances, rows, batches = (list(each) for each in zip(*own, strict=True))
    moments = [*means, *variances, *own_means, *own_variances]
    if len({moment.dtype for moment in moments}) > 1 or not unobserved([*moments, *rows, *batches]):
        return False
    # where a mean is not finite, no variance is
    if not math.isfinite(sum([var.sum().item() for var in variances])):
        return False
    if stop - step < steps:
        means, variances = ([m[: stop - step] for m in each] for each in (means, variances))
    added = [_number(count, torch.int64)] * len(own) + [_number(1, torch.int64)] * len(own)
    torch._foreach_add_([*rows, *batches], added)
    factor = _number(count / (count - 1), means[0].dtype)
    unbiased = [var * factor for var in variances]
    weight: Any = momentum
    if min([each.min().item() for each in batches]) * momentum < 1:
        first = [each.to(means[0].dtype).reciprocal() for each in batches]
        weight = 2 * [each.clamp_(min=momentum).unsqueeze_(1) for each in first]
    torch._foreach_lerp_([*own_means, *own_variances], [*means, *unbiased], weight)
    return True
