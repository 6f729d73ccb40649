"""The LSTM cell."""

from __future__ import annotations

import torch
from torch import Tensor

from rnnorm.cells.cell import (
    Cell,
    Normalise,
    State,
    Weights,
    preactivation,
    product,
    summed_bias,
)


def _step(
    weights: Weights, x_term: Tensor, state: State, normalise: Normalise, t: int
) -> tuple[Tensor, State]:
    """Cooijmans et al. 2016, eq. 6–8; the projection is torch.nn's ``proj_size``."""
    h, c = state
    i, f, g, o = preactivation(weights, x_term, h, normalise).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    c = normalise("carry", c)
    h = torch.sigmoid(o) * torch.tanh(normalise("cell", c))
    if weights.weight_hr is not None:
        h = product(h, weights.weight_hr)
    return h, (h, c)


LSTM = Cell(
    name="LSTM",
    gates=(4,),
    sites=("input", "recurrent", "joint", "cell", "carry"),
    step=_step,
    shifts=summed_bias,
)
