"""The GRU cell, with the reset gate after the recurrent product as in torch.nn."""

from __future__ import annotations

import torch
from torch import Tensor

from rnnorm.cells.cell import Cell, Normalise, State, Weights, product


def _step(
    weights: Weights, x_term: Tensor, state: State, normalise: Normalise, t: int
) -> tuple[Tensor, State]:
    """``n = tanh(BN(W_in x) + b_in + r (BN(W_hn h) + b_hn))``, ``h = (1 - z) n + z h``."""
    (h,) = state
    H = h.size(1)
    x_gates, x_candidate = torch.split(x_term, [2 * H, H], 1)
    h_term = normalise("recurrent", product(h, weights.weight_hh))
    h_gates, h_candidate = torch.split(h_term, [2 * H, H], 1)
    r, z = torch.sigmoid(x_gates + h_gates).chunk(2, 1)
    n = torch.tanh(torch.addcmul(x_candidate, r, h_candidate))
    h = torch.lerp(n, h, z)
    return h, (h,)


def _shifts(weights: Weights, sites: tuple[str, ...]) -> dict[str, Tensor]:
    if weights.bias_ih is None or weights.bias_hh is None:
        return {}
    return {"input": weights.bias_ih, "recurrent": weights.bias_hh}


GRU = Cell(name="GRU", gates=(2, 1), sites=("input", "recurrent"), step=_step, shifts=_shifts)
