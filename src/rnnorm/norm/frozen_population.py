"""Population statistics of a frozen model: every row is what serves its step."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from rnnorm.norm.moments import Moments
from rnnorm.norm.population import Population, may_become_another


class Resolved(Population):
    """A copy of a population that takes no more minibatches.

    Rows beyond the last step with a count are cut off; a row without one holds what serves it.

    Args:
        population: whose rows are copied.
    """

    def __init__(self, population: Population) -> None:
        nn.Module.__init__(self)
        for name in ("shared", "horizon", "momentum", "min_rows"):
            setattr(self, name, getattr(population, name))
        for name, buffer in population.named_buffers():
            self.register_buffer(name, buffer.clone())
        self.training = False
        self._resolve()

    def _resolve(self) -> None:
        counted = (self.num_batches_tracked > 0).tolist()
        last = len(counted) - counted[::-1].index(True) if any(counted) else len(counted)
        self.mean, self.var = super().at(torch.arange(last, device=self.mean.device))
        self.rows, self.num_batches_tracked = self.rows[:last], self.num_batches_tracked[:last]
        self._checked = True

    def at(self, steps: Tensor) -> Moments:
        """Mean and variance that serve the given steps, ``(*steps.shape, F)`` each.

        Args:
            steps: int64 indices, of any shape.
        """
        serving = steps.clamp(max=len(self) - 1)
        mean, var = (nn.functional.embedding(serving, m) for m in (self.mean, self.var))
        return mean, var

    def consecutive(self, first: int | Tensor, steps: int) -> Moments:
        """The same for steps in a row, as ``Population.consecutive``, without copies.

        Args:
            first: as that of ``Population.consecutive``.
            steps: how many.
        """
        mean, var = self._held("mean"), self._held("var")
        rows = mean.size(0)
        if rows == 1:
            return mean.unsqueeze(1), var.unsqueeze(1)
        if isinstance(first, int) and not may_become_another(steps):
            first = min(first, rows - 1)
            return mean[first : first + steps, None], var[first : first + steps, None]
        return super().consecutive(first, steps)

    def _grow_copies(self, rows: int) -> None:
        """Leaves them alone: rows without a count would serve."""

    def grow(self, steps: int, agreed: bool = False) -> NoReturn:
        """Refuses training.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("a frozen model cannot train: train the one that it is a copy of")

    def reset_running_stats(self) -> NoReturn:
        """Refuses to forget.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            "a frozen model keeps its statistics: take others with the one that it is a copy of"
        )

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._resolve()


def unresolved(model: nn.Module) -> list[Population]:
    """The populations of a model but for those of its frozen parts."""
    return [
        module
        for module in model.modules()
        if isinstance(module, Population) and not isinstance(module, Resolved)
    ]
