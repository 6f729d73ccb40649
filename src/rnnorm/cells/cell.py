"""What a cell is: the equations of one time step, its weights and its sites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import linear

from rnnorm.norm.spec import CELL_SITES

State = tuple[Tensor, ...]
Normalise = Callable[[str, Tensor], Tensor]


class Weights(NamedTuple):
    """The weights of one layer in one direction, with the shapes of torch.nn."""

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None = None
    bias_hh: Tensor | None = None
    weight_hr: Tensor | None = None


Step = Callable[[Weights, Tensor, State, Normalise, int], tuple[Tensor, State]]


@dataclass(frozen=True)
class Cell:
    """A recurrent cell.

    Args:
        name: torch's name of the mode.
        gates: number of gates in each block that layer norm treats as one.
        sites: what can be normalised.
        step: ``(weights, x_term, state, normalise, t) -> (output, state)``. ``x_term`` is the
            finished input term ``(n, gates * H)``; ``normalise(site, z)`` is the identity where
            a site is not normalised, and adds the site's shift.
        shifts: ``(weights, sites) -> {site: bias}``, where the biases enter.
    """

    name: str
    gates: tuple[int, ...]
    sites: tuple[str, ...]
    step: Step
    shifts: Callable[[Weights, tuple[str, ...]], dict[str, Tensor]]

    def blocks(self, site: str, hidden_size: int) -> list[int]:
        """Widths of a site's blocks, each of which layer norm treats as one."""
        gates = (1,) if site in CELL_SITES else self.gates
        return [hidden_size * count for count in gates]


def product(x: Tensor, weight: Tensor) -> Tensor:
    """``x W^T`` computed in the dtype of the weight, returned in that of ``x``."""
    return linear(x.to(weight.dtype), weight).to(x.dtype)


def preactivation(weights: Weights, x_term: Tensor, h: Tensor, normalise: Normalise) -> Tensor:
    """``x_term + BN(W_h h)``, or ``BN(x_term + W_h h) + b`` where joint; for LSTM and RNN."""
    return normalise("joint", x_term + normalise("recurrent", product(h, weights.weight_hh)))


def summed_bias(weights: Weights, sites: tuple[str, ...]) -> dict[str, Tensor]:
    """``b_ih + b_hh``, after the normalisation of the term that it shifts."""
    if weights.bias_ih is None or weights.bias_hh is None:
        return {}
    return {"joint" if "joint" in sites else "input": weights.bias_ih + weights.bias_hh}
