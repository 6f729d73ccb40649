"""The boundaries that a hierarchical multiscale LSTM found, and REINFORCE for them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Boundaries(NamedTuple):
    """The boundaries that an :class:`rnnorm.HMLSTM` found, of every layer but the last.

    Args:
        z: ``(T, B, L - 1)`` in the layout of the output: 0 or 1, with ``boundary="soft"`` any
            value between.
        probability: of the same shape: the hard sigmoid that z comes from.
    """

    z: Any
    probability: Any

    def reinforce(self, cost: Tensor) -> Tensor:
        r"""The loss whose gradient is the REINFORCE estimate for sampled boundaries.

        .. math::
            \frac{1}{B} \sum_{t, b} (G_{tb} - \bar{G}_{tb}) \log p(z_{tb}), \qquad
            G_{tb} = \sum_{s \ge t} \mathrm{cost}_{sb}

        (Williams 1992), the mean over the other rows as the baseline. Add it to the loss itself,
        whose gradient does not go through a sampled boundary.

        Args:
            cost: ``(T, B)``, what each step costs; zero where padded. No gradient is taken of it.

        Raises:
            RuntimeError: ``cost`` has another shape, or the boundaries are packed or unbatched.
        """
        if not isinstance(self.z, Tensor) or self.z.shape[:-1] != cost.shape or cost.dim() != 2:
            shape = tuple(self.z.shape) if isinstance(self.z, Tensor) else type(self.z).__name__
            raise RuntimeError(
                f"cost must be (T, B) for z (T, B, ·), got {tuple(cost.shape)} and {shape}"
            )
        chosen = torch.where(self.z.detach() > 0.5, self.probability, 1 - self.probability)
        future = cost.detach().flip(0).cumsum(0).flip(0)
        rows = cost.size(1)
        others = (future.sum(1, keepdim=True) - future) / max(1, rows - 1)
        return ((future - others) * chosen.log().sum(-1)).sum() / max(1, rows)


class BatchFirstBoundaries(NamedTuple):
    """The same of a layer with ``batch_first`` and dense input.

    Args:
        z: ``(B, T, L - 1)``, else as :class:`Boundaries` has it.
        probability: of the same shape.
    """

    z: Any
    probability: Any

    def reinforce(self, cost: Tensor) -> Tensor:
        """As :meth:`Boundaries.reinforce`.

        Args:
            cost: ``(B, T)``, what each step costs.

        Raises:
            RuntimeError: ``cost`` has another shape.
        """
        if self.z.shape[:-1] != cost.shape:
            raise RuntimeError(
                f"cost must be (B, T) for z (B, T, ·), got {tuple(cost.shape)} and "
                f"{tuple(self.z.shape)}"
            )
        z, probability = (part.transpose(0, 1) for part in self)
        return Boundaries(z, probability).reinforce(cost.T)
