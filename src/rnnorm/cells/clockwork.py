"""The Clockwork RNN's cell: modules of units, each with its own period."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rnnorm.cells.cell import Cell, Normalise, State, Weights, sum_of_biases


@dataclass(frozen=True)
class ClockworkRNN(Cell):
    """Elman network whose modules move at different rates.

    Args:
        periods: periods of the modules, ascending: module i moves if ``t mod periods[i] = 0``.
    """

    periods: tuple[int, ...]
    # a module that does not move reads no frame
    reads_frames = True
    dropouts = ("hidden", "zoneout_h")

    @property
    def sites(self) -> tuple[str, ...]:
        """Return the sites of every module, which takes statistics when it moves."""
        kinds = ("input", "recurrent", "joint")
        return tuple(f"{kind}_period{period}" for kind in kinds for period in self.periods)

    def prepare(self, weights: Weights) -> Weights:
        """Split the matrices by module once: split at each step, gradients would be full-size."""
        rows_x = weights.weight_ih.chunk(len(self.periods))
        rows_h = weights.weight_hh.chunk(len(self.periods))
        own = {f"weight_ih_period{p}": rows for p, rows in zip(self.periods, rows_x, strict=True)}
        size = len(rows_h[0])
        for i, (period, rows) in enumerate(zip(self.periods, rows_h, strict=True)):
            # a module reads itself and the slower modules
            own[f"weight_hh_period{period}"] = rows[:, i * size :]
        return weights._replace(own=own)

    def step(
        self,
        weights: Weights,
        x_term: Tensor,
        state: State,
        normalise: Normalise,
        t: int | Tensor,
    ) -> tuple[Tensor, State]:
        """Compute ``h_i = tanh(BN(W_i x) + BN(Σ_{j ≥ i} U_ij h_j) + b)`` for modules that move.

        (Koutník et al. 2014, with normalised terms.)
        """
        (h,) = state
        modules = list(h.chunk(len(self.periods), 1))
        seen = normalise("hidden", h)
        size = modules[0].size(1)
        for i, period in enumerate(self.periods):
            moves = t % period == 0
            if moves is False:
                continue
            x = self.product(x_term, weights.own[f"weight_ih_period{period}"])
            z = self.product(seen[:, i * size :], weights.own[f"weight_hh_period{period}"])
            x, z = normalise(f"input_period{period}", x), normalise(f"recurrent_period{period}", z)
            new = torch.tanh(normalise(f"joint_period{period}", x + z))
            modules[i] = new if moves is True else torch.where(moves, new, modules[i])
        h = torch.cat(modules, 1)
        return h, (h,)

    def shifts(self, weights: Weights, sites: tuple[str, ...]) -> dict[str, Tensor]:
        """Return each module's part of ``b_ih + b_hh``, at its joint site or its input site."""
        bias = sum_of_biases(weights)
        if bias is None:
            return {}
        kind = "joint" if self.sites[-1] in sites else "input"
        biases = bias.chunk(len(self.periods))
        return {f"{kind}_period{p}": bias for p, bias in zip(self.periods, biases, strict=True)}

    def blocks(self, site: str, hidden_size: int) -> list[int]:
        """Return one block: layer norm runs over the units of a module."""
        return [hidden_size // len(self.periods)]
