"""The light GRU: one gate, and a rectifier."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rnnorm.cells.cell import Cell, Normalise, State, Weights
from rnnorm.cells.rnn import ACTIVATIONS, check_nonlinearity


@dataclass(frozen=True)
class LiGRU(Cell):
    """Light gated recurrent unit (Ravanelli et al. 2018); gate order z, n.

    Args:
        nonlinearity: ``"relu"`` or ``"tanh"``.
    """

    nonlinearity: str = "relu"
    gates = (2,)
    dropouts = ("hidden", "candidate", "zoneout_h")

    def __post_init__(self) -> None:
        check_nonlinearity(self.nonlinearity)

    def step(
        self,
        weights: Weights,
        x_term: Tensor,
        state: State,
        normalise: Normalise,
        t: int | Tensor,
    ) -> tuple[Tensor, State]:
        """Compute ``z, n = BN(W_x x) + BN(W_h h) + b``, ``h = σ(z) h + (1 - σ(z)) φ(n)``."""
        (h,) = state
        z, n = self.preactivation(weights, x_term, h, normalise).chunk(2, 1)
        n = normalise("candidate", ACTIVATIONS[self.nonlinearity](n))
        h = torch.lerp(n, h, torch.sigmoid(z))
        return h, (h,)
