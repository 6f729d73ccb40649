"""Means and variances of one site over one call, and the normalisation by them."""

from __future__ import annotations

from collections.abc import Iterable
from math import nan

import torch
from torch import Tensor
from torch.nn.functional import batch_norm, pad

from rnnorm.tracing import transformed

Moments = tuple[Tensor, Tensor]


class BatchSite:
    """Batch-normalises one site, step after step (Cooijmans et al. 2016, eq. 5).

    A step with at least ``min_rows`` rows is normalised with its own statistics, in two passes.
    A step with fewer rows uses the statistics of the last step that had enough, as constants, or
    else its row of ``constants``. With ``min_rows=None`` (evaluation) every step uses its row of
    ``constants``.

    Args:
        gamma: ``(F,)``.
        shift: ``(F,)``, or None where nothing is added.
        eps: added to the variance.
        constants: mean and variance ``(R, 1, F)``, or ``(R, B, F)`` for rows at different ages, the
            last of which serves all later steps; None where no step needs them.
        min_rows: fewest rows that a statistic is taken of, or None.
        steps: number of steps that memory is allocated for at once.
    """

    def __init__(
        self,
        gamma: Tensor,
        shift: Tensor | None,
        eps: float,
        constants: Moments | None,
        min_rows: int | None,
        steps: int = 1,
    ) -> None:
        self.gamma, self.shift, self.eps, self.min_rows = gamma, shift, eps, min_rows
        # memory for the moments of steps to come
        self._steps, self._room = steps, list[Moments]()
        self._constants: list[Moments] = []
        if constants is not None:
            mean, var = constants
            scale = scale_of(gamma, var, eps)
            self._constants = list(zip(mean.unbind(0), scale.unbind(0), strict=True))
            self._aged = mean.size(1) > 1
        self._taken: list[tuple[Tensor, Tensor, float]] = []
        self._asked: list[int] = []

    def __call__(self, z: Tensor, t: int) -> Tensor:
        """Normalise ``z`` ``(n, F)``, the active rows of step t."""
        if self.min_rows is not None and (n := z.size(0)) >= self.min_rows:
            mean, var = self._zeros(z)
            # momentum 1 leaves the minibatch's mean and unbiased variance in the two tensors
            out = z
            # torch.batch_norm rejects zero features
            if z.size(1):
                out = batch_norm(z, mean, var, self.gamma, self.shift, True, 1.0, self.eps)
            self._asked.append(t)
            self._taken.append((mean, var, (n - 1) / n))
            return out
        return self._by_constants(z, t)

    def _zeros(self, z: Tensor) -> Moments:
        """Return zeros for the moments of ``z``; on a GPU each allocation would launch a kernel."""
        F = z.size(1)
        # vmap would lose values written into a view
        if not F or transformed():
            return z.new_zeros(F), z.new_zeros(F)
        if not self._room:
            # autograd takes these views for separate tensors, which is right: each is written to
            views = z.new_zeros(2 * self._steps * F).unsafe_split(F)
            self._room = list(zip(views[::2], views[1::2], strict=True))
        return self._room.pop()

    def terms(self, terms: Tensor, sizes: list[int], whole: bool) -> Iterable[Tensor]:
        """Normalise the terms of all steps, which are known ahead.

        Args:
            terms: ``(Σ n_t, F)``.
            sizes: number of rows n of each step.
            whole: whether one statistic over all rows of all steps is used.
        """
        if not whole:
            return map(self, torch.split(terms, sizes), range(len(sizes)))
        return torch.split(self(terms, 0), sizes)

    def _by_constants(self, z: Tensor, t: int) -> Tensor:
        self._asked.append(t)
        if self._taken:
            mean, var, bias = self._taken[-1]
            scale = scale_of(self.gamma, var * bias, self.eps)
        else:
            if not self._constants:
                raise ValueError(
                    f"expected at least {self.min_rows} active rows where a site is normalised "
                    f"first, got {z.size(0)} in step {t} of the call, and no earlier step has a "
                    "statistic"
                )
            # the last row serves all later steps
            mean, scale = self._constants[min(t, len(self._constants) - 1)]
            if self._aged:
                mean, scale = mean[: z.size(0)], scale[: z.size(0)]
        return normalise_by(z, mean, scale, self.shift)

    def repeated(self) -> bool:
        """Tell whether a cell has asked for the site twice at a step."""
        return len(set(self._asked)) < len(self._asked)

    def taken(self, steps: int) -> Moments:
        """Return the statistics taken: mean and biased variance ``(steps, F)``.

        They are zero where a step had too few rows, NaN where the cell has not asked for the site.
        """
        like = self.gamma.detach()
        if not self._taken:
            none = like.new_full((steps, like.size(0)), nan if len(self._asked) < steps else 0.0)
            return none, none
        means, variances, biases = zip(*self._taken, strict=True)
        # python numbers: a tensor of them would have to be copied to the device
        if len(set(biases)) > 1:
            variances, biases = torch._foreach_mul(variances, biases), (1.0,)
        mean, var = torch.stack(means), torch.stack(variances) * biases[0]
        if len(self._asked) < steps:
            # not index_copy, whose indices would be copied to the device
            none = like.new_full((like.size(0),), nan)
            rows = dict(zip(self._asked, range(len(means)), strict=False))
            at = [rows.get(t, len(means)) for t in range(steps)]
            mean_of, var_of = (*mean.unbind(), none), (*var.unbind(), none)
            return torch.stack([mean_of[k] for k in at]), torch.stack([var_of[k] for k in at])
        missing = (0, 0, 0, steps - len(means))
        return pad(mean, missing), pad(var, missing)


def scale_of(gamma: Tensor, var: Tensor, eps: float | Tensor) -> Tensor:
    """Return ``γ / √(v + ε)``, the factor of a centred term."""
    return gamma * torch.rsqrt(var + eps)


def normalise_by(z: Tensor, mean: Tensor, scale: Tensor, shift: Tensor | None) -> Tensor:
    """Return ``(z - μ) s`` plus the shift, if there is one."""
    centred = z - mean
    return centred * scale if shift is None else torch.addcmul(shift, centred, scale)
