"""The Elman cell, with tanh or ReLU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rnnorm.cells.cell import Cell, Normalise, State, Weights

ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu}


def check_nonlinearity(name: object) -> None:
    """Check the name of a nonlinearity.

    Raises:
        ValueError: if it is neither ``"tanh"`` nor ``"relu"``.
    """
    if name not in tuple(ACTIVATIONS):
        raise ValueError(f"nonlinearity must be 'tanh' or 'relu', got {name!r}")


@dataclass(frozen=True)
class RNN(Cell):
    """Elman network.

    Args:
        nonlinearity: ``"tanh"`` or ``"relu"``.
    """

    nonlinearity: str = "tanh"
    dropouts = ("hidden", "zoneout_h")

    @property
    def name(self) -> str:
        """Return torch.nn's name of the mode."""
        return f"RNN_{self.nonlinearity.upper()}"

    def step(
        self,
        weights: Weights,
        x_term: Tensor,
        state: State,
        normalise: Normalise,
        t: int | Tensor,
    ) -> tuple[Tensor, State]:
        """Compute ``h_t = φ(BN(W_x x_t) + BN(W_h h_{t-1}) + b)`` (Laurent et al. 2015, eq. 18, 17).

        Raises:
            RuntimeError: if the nonlinearity is unknown.
        """
        if self.nonlinearity not in ACTIVATIONS:
            # checked here, not in the constructor, as torch.nn.RNNCell does
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        (h,) = state
        activation = ACTIVATIONS[self.nonlinearity]
        h = activation(self.preactivation(weights, x_term, h, normalise))
        return h, (h,)
