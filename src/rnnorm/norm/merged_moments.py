"""Means and variances of one site over the rows of several processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

from rnnorm.norm.moments import BatchSite, Moments


class ActiveRows(NamedTuple):
    """Numbers of active rows of every rank at every step of a call.

    Args:
        each: ``(world, T)`` int64, on the CPU.
        group: process group of the ranks, or None for all processes.
    """

    each: Tensor
    group: Any

    def merge(self, own: Tensor, rows: Tensor) -> Moments:
        """Compute the mean and biased variance of the rows of all ranks.

        Each rank's mean and sum of squared deviations are merged by Chan et al. 1979, eq. 2.1,
        which takes no difference of large sums. All ranks compute in the same order, and get the
        same bits.

        Args:
            own: ``(2 * blocks, F)``: this rank's mean of each block, then its sum of squared
                deviations, zeros where the rank has no rows.
            rows: ``(world, blocks)``, rows of each rank in each block.

        Returns:
            mean and biased variance, ``(blocks, F)`` each.
        """
        means, sums = self._gather(own).chunk(2, 1)
        weight = rows.to(own).unsqueeze(2)
        total = weight.sum(0)
        mean = (weight / total * means).sum(0)
        var = (sums + weight * (means - mean).square()).sum(0) / total
        return mean, var

    def add(self, own: Tensor) -> Tensor:
        """Add up a tensor over all ranks."""
        # all_reduce would wait for the other ranks twice
        return self._gather(own).sum(0)

    def _gather(self, own: Tensor) -> Tensor:
        every = own.new_empty(len(self.each), *own.shape)
        distributed.all_gather(list(every), own, group=self.group)
        return every


class MergedSite(BatchSite):
    """Batch-normalises one site by the statistics of the rows of all ranks.

    Every rank takes part in every step, also where it has no active row. The ranks exchange means
    and sums of squared deviations once a step, for the input term once a call.

    Args:
        *site: the arguments of :class:`BatchSite`; ``min_rows`` counts the rows of all ranks.
        rows: active rows of all ranks.
    """

    min_rows: int

    def __init__(self, *site: Any, rows: ActiveRows) -> None:
        super().__init__(*site)
        self._rows, self._ranks = rows.each, rows

    def __call__(self, z: Tensor, t: int) -> Tensor:
        """Normalise ``z`` ``(n, F)``, this rank's active rows of step t."""
        if int(self._rows[:, t].sum()) < self.min_rows:
            return self._by_constants(z, t)
        return self._merge(z, [t], self._rows[:, t : t + 1])

    def terms(self, terms: Tensor, sizes: list[int], whole: bool) -> Iterable[Tensor]:
        """Normalise the terms of all steps at once."""
        if whole:
            rows = self._rows.sum(1, keepdim=True)
            few = int(rows.sum()) < self.min_rows
            z = self._by_constants(terms, 0) if few else self._merge(terms, [0], rows)
            return torch.split(z, sizes)
        # active rows never grow, so steps with enough of them come first
        enough = int((self._rows.sum(0) >= self.min_rows).sum())
        merged: list[Tensor] = []
        if enough:
            z = terms[: sum(sizes[:enough])]
            z = self._merge(z, list(range(enough)), self._rows[:, :enough])
            merged = list(torch.split(z, sizes[:enough]))
        late = list(enumerate(torch.split(terms, sizes)))[enough:]
        return [*merged, *[self._by_constants(z, t) for t, z in late]]

    def _merge(self, z: Tensor, steps: list[int], rows: Tensor) -> Tensor:
        counts = rows[distributed.get_rank(self._ranks.group)].tolist()
        out, mean, var = _Merge.apply(  # type: ignore[no-untyped-call]
            z, self.gamma, self.shift, self.eps, counts, rows, self._ranks
        )
        self._asked += steps
        self._taken += [(m, v, 1.0) for m, v in zip(mean, var, strict=True)]
        return out  # type: ignore[no-any-return]


class _Merge(torch.autograd.Function):
    """Normalisation of blocks of rows that are spread over all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        gamma: Tensor,
        shift: Tensor | None,
        eps: float,
        counts: list[int],
        rows: Tensor,
        ranks: ActiveRows,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Normalise each block of rows of ``z`` ``(n, F)``; ``rows`` is ``(world, blocks)``."""
        blocks = torch.split(z, counts)
        means = [block.mean(0) if len(block) else z.new_zeros(z.size(1)) for block in blocks]
        pairs = zip(blocks, means, strict=True)
        own = torch.stack([*means, *[(block - m).square().sum(0) for block, m in pairs]])
        mean, var = ranks.merge(own, rows)
        inverse = torch.rsqrt(var + eps)
        normal = (z - _spread(mean, counts)) * _spread(inverse, counts)
        ctx.save_for_backward(normal, inverse, gamma)
        ctx.counts, ctx.ranks, ctx.shifted = counts, ranks, shift is not None
        ctx.total = rows.sum(0).to(z).unsqueeze(1)
        ctx.mark_non_differentiable(mean, var)
        out = normal * gamma if shift is None else torch.addcmul(shift, normal, gamma)
        return out, mean, var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradient of batch normalisation, with its two sums over all ranks' rows."""
        normal, inverse, gamma = ctx.saved_tensors
        grad, counts = grads[0], ctx.counts
        own = torch.stack(
            [each.sum(0) for of in (grad, grad * normal) for each in torch.split(of, counts)]
        )
        along_mean, along_std = ctx.ranks.add(own).chunk(2)
        along_mean, along_std = (
            _spread(along / ctx.total, counts) for along in (along_mean, along_std)
        )
        grad_z = gamma * _spread(inverse, counts) * (grad - along_mean - normal * along_std)
        grad_shift, grad_gamma = (part.sum(0) for part in own.chunk(2))
        return grad_z, grad_gamma, grad_shift if ctx.shifted else None, None, None, None, None


def _spread(moment: Tensor, rows: list[int]) -> Tensor:
    """Repeat a moment ``(blocks, F)`` for every row of its block, to ``(n, F)``."""
    if len(rows) == 1:
        return moment
    return moment.repeat_interleave(torch.tensor(rows, device=moment.device), 0)
