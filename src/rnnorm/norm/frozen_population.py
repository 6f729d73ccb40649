"""Population statistics of a frozen model: each row holds what its step uses."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from rnnorm.norm.moments import Moments
from rnnorm.norm.population import Population
from rnnorm.tracing import steps_may_vary


class FrozenPopulation(Population):
    """A copy of a population that takes no more minibatches.

    Rows beyond the last step with a count are cut off. A row without a count holds the statistics
    of the step that serves it.

    Args:
        population: the population to copy.
    """

    _filled = True

    def __init__(self, population: Population) -> None:
        nn.Module.__init__(self)
        for name in ("shared", "horizon", "momentum", "min_rows"):
            setattr(self, name, getattr(population, name))
        for name, buffer in population.named_buffers():
            self.register_buffer(name, buffer.clone())
        self.training = False
        self._fill_rows()

    def _fill_rows(self) -> None:
        counted = (self.num_batches_tracked > 0).tolist()
        last = len(counted) - counted[::-1].index(True) if any(counted) else len(counted)
        self.mean, self.var = super().at(torch.arange(last, device=self.mean.device))
        self.rows, self.num_batches_tracked = self.rows[:last], self.num_batches_tracked[:last]
        self._checked = True

    def at(self, steps: Tensor) -> Moments:
        """Return the mean and variance used at the given steps, ``(*steps.shape, F)`` each.

        Args:
            steps: int64 indices, of any shape.
        """
        serving = steps.clamp(max=len(self) - 1)
        mean, var = (nn.functional.embedding(serving, m) for m in (self.mean, self.var))
        return mean, var

    def consecutive(self, first: int | Tensor, steps: int) -> Moments:
        """Return the mean and variance used at consecutive steps, without copying them.

        Args:
            first: as in ``Population.consecutive``.
            steps: number of steps.
        """
        mean, var = self._buffer("mean"), self._buffer("var")
        rows = mean.size(0)
        if rows == 1:
            return mean.unsqueeze(1), var.unsqueeze(1)
        if isinstance(first, int) and not steps_may_vary(steps):
            first = min(first, rows - 1)
            return mean[first : first + steps, None], var[first : first + steps, None]
        return super().consecutive(first, steps)

    def _grow_copies(self, rows: int) -> None:
        """Leave deep copies as they are: an added row has no count, and would be used."""

    def grow(self, steps: int, agreed: bool = False) -> NoReturn:
        """Refuse to grow, as only training does.

        Raises:
            RuntimeError: if the method is called.
        """
        raise RuntimeError("a frozen model cannot train: train the one that it is a copy of")

    def reset_running_stats(self) -> NoReturn:
        """Refuse to forget the statistics.

        Raises:
            RuntimeError: if the method is called.
        """
        raise RuntimeError(
            "a frozen model keeps its statistics: take others with the one that it is a copy of"
        )

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._fill_rows()


def unfrozen_populations(model: nn.Module) -> list[Population]:
    """Return the populations of a model that are not frozen."""
    return [
        module
        for module in model.modules()
        if isinstance(module, Population) and not isinstance(module, FrozenPopulation)
    ]
