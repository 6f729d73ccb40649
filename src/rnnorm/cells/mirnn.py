"""The Elman cell with multiplicative integration."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rnnorm.cells.cell import Cell, Normalise, State, Weights, sum_of_biases


@dataclass(frozen=True)
class MIRNN(Cell):
    """Elman network whose two terms are multiplied as well as added (Wu et al. 2016)."""

    dropouts = ("hidden", "zoneout_h")
    bounds = dict.fromkeys(("alpha", "beta_1", "beta_2"), (1.0, 1.0))

    def weights(self, input_size: int, hidden_size: int, bias: bool) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the weights: those of an RNN, then α, β_1 and β_2."""
        own = dict.fromkeys(self.bounds, (hidden_size,))
        return super().weights(input_size, hidden_size, bias) | own

    def prepare(self, weights: Weights) -> Weights:
        """Add ``b = b_ih + b_hh`` to the weights that ``step`` gets, zeros without biases."""
        b = sum_of_biases(weights)
        b = torch.zeros_like(weights.own["alpha"]) if b is None else b
        return weights._replace(own={**weights.own, "bias": b})

    def step(
        self,
        weights: Weights,
        x_term: Tensor,
        state: State,
        normalise: Normalise,
        t: int | Tensor,
    ) -> tuple[Tensor, State]:
        """Compute ``h_t = tanh(α ⊙ Wx ⊙ Uh + β_1 ⊙ Uh + β_2 ⊙ Wx + b)`` (eq. 4).

        Wx and Uh are normalised terms; the joint site is the sum without b.
        """
        (h,) = state
        h_term = self.product(normalise("hidden", h), weights.weight_hh)
        h_term = normalise("recurrent", h_term)
        alpha, beta_1, beta_2 = (weights.own[name] for name in self.bounds)
        # α Wx Uh + β_2 Wx as one product with Wx
        factor = torch.addcmul(beta_2, alpha, h_term)
        both = torch.addcmul(beta_1 * h_term, factor, x_term)
        h = torch.tanh(normalise("joint", both) + weights.own["bias"])
        return h, (h,)

    def shifts(self, weights: Weights, sites: tuple[str, ...]) -> dict[str, Tensor]:
        """Return nothing: a bias of W x would be multiplied by U h, so ``step`` adds b."""
        return {}
