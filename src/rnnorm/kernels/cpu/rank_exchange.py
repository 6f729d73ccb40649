"""The exchange of statistics between the passes of several processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rnnorm.norm.merged_moments import ActiveRows


class Exchange:
    """Merges the statistics of this rank with those of all ranks, when a pass calls it.

    Args:
        rows: the active rows of all ranks.
        parts: two tensors ``(steps, F)`` for each site, which are changed in place.
        backward: whether the tensors are sums, not mean and sum of squared deviations.
    """

    def __init__(
        self, rows: ActiveRows, parts: Sequence[tuple[Tensor, ...]], *, backward: bool
    ) -> None:
        self.sizes = rows.each.sum(0)
        self._rows, self._parts, self._backward = rows, parts, backward

    def __call__(self, site: int, first: int, count: int) -> None:
        """Merge ``count`` steps from ``first``, as ``rnnorm_exchange`` of csrc/layer.h asks for."""
        pair = [part[first : first + count] for part in self._parts[site]]
        own = torch.cat(pair)
        if self._backward:
            of_all = self._rows.add(own).chunk(2)
        else:
            each, steps = self._rows.each, len(self._parts[site][0])
            # sequence scope has one statistic
            rows = each[:, first : first + count] if steps > 1 else each.sum(1, keepdim=True)
            of_all = self._rows.merge(own, rows)
        for part, merged in zip(pair, of_all, strict=True):
            part.copy_(merged)
