"""The independently recurrent cell: each unit sees itself alone."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rnnorm.cells.cell import Cell, Normalise, State, Weights
from rnnorm.cells.rnn import ACTIVATIONS, check_nonlinearity


@dataclass(frozen=True)
class IndRNN(Cell):
    """Independently recurrent network (Li et al. 2018), whose ``weight_hh`` is a vector.

    Args:
        nonlinearity: ``"relu"`` or ``"tanh"``.
    """

    nonlinearity: str = "relu"
    dropouts = ("hidden", "zoneout_h")
    # as the authors' code: near 0, a unit would forget within a few steps
    bounds = {"weight_hh": (0.0, 1.0)}  # noqa: RUF012

    def __post_init__(self) -> None:
        check_nonlinearity(self.nonlinearity)

    def weights(self, input_size: int, hidden_size: int, bias: bool) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the weights: those of an RNN, but for one u for each unit."""
        return super().weights(input_size, hidden_size, bias) | {"weight_hh": (hidden_size,)}

    def step(
        self,
        weights: Weights,
        x_term: Tensor,
        state: State,
        normalise: Normalise,
        t: int | Tensor,
    ) -> tuple[Tensor, State]:
        """Compute ``h_t = φ(BN(W_x x_t) + BN(u ⊙ h_{t-1}) + b)``."""
        (h,) = state
        h_term = normalise("recurrent", weights.weight_hh * normalise("hidden", h))
        h = ACTIVATIONS[self.nonlinearity](normalise("joint", x_term + h_term))
        return h, (h,)
