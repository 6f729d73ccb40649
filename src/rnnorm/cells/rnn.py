"""The Elman cell, with tanh or a rectifier."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rnnorm.cells.cell import Cell, Normalise, State, Weights, preactivation, summed_bias


def _cell(name: str, activation: Callable[[Tensor], Tensor]) -> Cell:
    def step(
        weights: Weights, x_term: Tensor, state: State, normalise: Normalise, t: int
    ) -> tuple[Tensor, State]:
        """``h_t = φ(BN(W_x x_t) + BN(W_h h_{t-1}) + b)`` (Laurent et al. 2015, eq. 18, 17)."""
        (h,) = state
        h = activation(preactivation(weights, x_term, h, normalise))
        return h, (h,)

    return Cell(
        name=name,
        gates=(1,),
        sites=("input", "recurrent", "joint"),
        step=step,
        shifts=summed_bias,
    )


RNN_TANH = _cell("RNN_TANH", torch.tanh)
RNN_RELU = _cell("RNN_RELU", torch.relu)
