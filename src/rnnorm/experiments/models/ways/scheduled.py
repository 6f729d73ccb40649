"""Scheduled sampling, and its controls."""

from __future__ import annotations

import math
from typing import Literal

import torch

from rnnorm.experiments.models.feeding import Feeding, draw
from rnnorm.experiments.models.ways.teacher import Place, Task, Teacher, fed_later


class Scheduled(Teacher):
    r"""Scheduled sampling: each symbol is the truth with a probability that falls to 0.

    Else it is drawn from the model's own distribution (Bengio et al. 2015, §2.4):

    .. math::
        \epsilon_i = \max(\epsilon, k - c i), \quad k^i, \quad k / (k + e^{i/k})

    Args:
        decay: ``"linear"``, ``"exponential"`` or ``"inverse_sigmoid"``.
        k: of the decay: at most 1 if linear, below 1 if exponential, at least 1 if it is the
            inverse sigmoid; i counts steps of the optimiser.
        c: what each minibatch takes away (linear).
        floor: ε, the least probability (linear).

    Raises:
        ValueError: an argument is none of these.
    """

    def __init__(
        self,
        decay: Literal["linear", "exponential", "inverse_sigmoid"] = "inverse_sigmoid",
        k: float = 300.0,
        c: float = 0.0,
        floor: float = 0.0,
    ) -> None:
        fits = {
            "linear": 0 < k <= 1 and c >= 0 and 0 <= floor <= 1,
            "exponential": 0 < k < 1,
            "inverse_sigmoid": 1 <= k < math.inf,
        }
        if decay not in fits:
            raise ValueError(f"decay must be one of {', '.join(fits)}, got {decay!r}")
        if not fits[decay]:
            raise ValueError(
                "k must be in (0, 1] with c >= 0 and 0 <= floor <= 1 if the decay is linear, in "
                f"(0, 1) if exponential, at least 1 if inverse_sigmoid, got {decay}: k={k}, c={c}, "
                f"floor={floor}"
            )
        self.decay, self.k, self.c, self.floor = decay, k, c, floor

    def truth(self, minibatch: int) -> float:
        """Probability of the truth."""
        if self.decay == "linear":
            return max(self.floor, self.k - self.c * minibatch)
        if self.decay == "exponential":
            return float(self.k**minibatch)
        # k / (k + exp(i / k)), where the power would be too large for a number
        return 1 / (1 + math.exp(min(700.0, minibatch / self.k - math.log(self.k))))

    def feeding(self, task: Task, place: Place) -> Feeding:
        """The truth or a draw, by a coin for each symbol."""
        teacher = super().feeding(task, place)
        coins = torch.rand(teacher.own.shape, device=teacher.own.device)
        own = (coins >= self.truth(place.minibatch)) & fed_later(teacher.own, task.lengths)
        return teacher._replace(own=own, choose=draw)


class Always(Scheduled):
    """Always sampling, from the first minibatch on (Bengio et al. 2015, a control)."""

    def __init__(self) -> None:
        super().__init__("linear", k=1.0)

    def truth(self, minibatch: int) -> float:
        """Never."""
        return 0.0


class Uniform(Scheduled):
    """Scheduled sampling of symbols that are all as probable (Bengio et al. 2015, a control)."""

    def feeding(self, task: Task, place: Place) -> Feeding:
        """The truth or any symbol: known beforehand, so that nothing is chosen on the way."""
        scheduled = super().feeding(task, place)
        anything = torch.randint_like(scheduled.truth, task.symbols)
        truth = torch.where(scheduled.own[:-1], anything, scheduled.truth)
        return scheduled._replace(truth=truth, own=torch.zeros_like(scheduled.own))
