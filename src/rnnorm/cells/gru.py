"""The GRU cell, with the reset gate at one of three places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rnnorm.cells.cell import Cell, Normalise, State, Weights, separate_biases, sum_of_terms


@dataclass(frozen=True)
class GRU(Cell):
    """Gated recurrent unit.

    Args:
        reset_after: whether the reset gate acts on the candidate's recurrent term, as in torch.nn,
            or on h before the product (Cho et al. 2014); ``"both"`` lets it act on the sum of the
            candidate's two terms (Dreamer).
    """

    reset_after: bool | Literal["both"] = True
    gates = (2, 1)
    dropouts = ("hidden", "candidate", "zoneout_h")

    @property
    def sites(self) -> tuple[str, ...]:
        """Return the sites; if the reset gate acts first, the candidate has sites of its own."""
        if self.reset_after == "both":
            # not super().sites, which torch.compile takes for the property itself
            return ("input", "recurrent", "joint")
        if self.reset_after:
            return ("input", "recurrent")
        return ("input", "recurrent", "recurrent_candidate", "joint", "joint_candidate")

    def prepare(self, weights: Weights) -> Weights:
        """Split ``W_h`` into gates and candidate, if the reset gate acts before the product."""
        if self.reset_after:
            return weights
        H = self.units(weights)
        gates, candidate = weights.weight_hh[: 2 * H], weights.weight_hh[2 * H :]
        return weights._replace(own={"weight_gates": gates, "weight_candidate": candidate})

    def step(
        self,
        weights: Weights,
        x_term: Tensor,
        state: State,
        normalise: Normalise,
        t: int | Tensor,
    ) -> tuple[Tensor, State]:
        """Compute one step, by default with the reset gate after the recurrent product.

        ``n = tanh(BN(W_in x) + b_in + r (BN(W_hn h) + b_hn))``, ``h = (1 - z) n + z h``.
        """
        (h,) = state
        if self.reset_after == "both":
            return self._reset_sum(weights, x_term, h, normalise)
        H = h.size(1)
        x_gates, x_candidate = torch.split(x_term, [2 * H, H], 1)
        if not self.reset_after:
            return self._reset_before(weights, x_gates, x_candidate, h, normalise)
        h_term = normalise("recurrent", self.product(normalise("hidden", h), weights.weight_hh))
        h_gates, h_candidate = torch.split(h_term, [2 * H, H], 1)
        r, z = torch.sigmoid(x_gates + h_gates).chunk(2, 1)
        n = normalise("candidate", torch.tanh(torch.addcmul(x_candidate, r, h_candidate)))
        h = torch.lerp(n, h, z)
        return h, (h,)

    def _reset_before(
        self,
        weights: Weights,
        x_gates: Tensor,
        x_candidate: Tensor,
        h: Tensor,
        normalise: Normalise,
    ) -> tuple[Tensor, State]:
        """Compute the step with ``n = tanh(BN(W_in x) + b_in + BN(W_hn (r h)) + b_hn)``."""
        seen, own = normalise("hidden", h), weights.own
        gates = sum_of_terms(x_gates, seen, own["weight_gates"], normalise)
        r, z = torch.sigmoid(gates).chunk(2, 1)
        n = sum_of_terms(x_candidate, r * seen, own["weight_candidate"], normalise, "_candidate")
        n = normalise("candidate", torch.tanh(n))
        h = torch.lerp(n, h, z)
        return h, (h,)

    def _reset_sum(
        self, weights: Weights, x_term: Tensor, h: Tensor, normalise: Normalise
    ) -> tuple[Tensor, State]:
        """Compute the step with ``n = tanh(r (BN(W_in x) + BN(W_hn h) + b_in + b_hn))``."""
        r, z, n = self.preactivation(weights, x_term, h, normalise).chunk(3, 1)
        n = normalise("candidate", torch.tanh(torch.sigmoid(r) * n))
        h = torch.lerp(n, h, torch.sigmoid(z))
        return h, (h,)

    def blocks(self, site: str, hidden_size: int) -> list[int]:
        """Return the widths of a site's blocks: one of the two gates, one of the candidate."""
        if self.reset_after or site == "input":
            return super().blocks(site, hidden_size)
        return [hidden_size if site.endswith("_candidate") else 2 * hidden_size]

    def shifts(self, weights: Weights, sites: tuple[str, ...]) -> dict[str, Tensor]:
        """Return the biases; ``b_hh`` has its own site if the reset gate multiplies it alone."""
        if self.reset_after == "both":
            return super().shifts(weights, sites)
        if self.reset_after:
            return separate_biases(weights)
        shifts = super().shifts(weights, sites)
        if "joint" not in shifts:
            return shifts
        bias, H = shifts["joint"], self.units(weights)
        return {"joint": bias[: 2 * H], "joint_candidate": bias[2 * H :]}
