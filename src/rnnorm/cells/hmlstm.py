"""The hierarchical multiscale LSTM's cell: layers that read each other at every step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rnnorm.cells.cell import Cell, Normalise, State, Weights


def hard_sigmoid(s: Tensor, slope: Tensor) -> Tensor:
    """Return the boundary probability ``clip((a s + 1) / 2, 0, 1)`` (Chung et al. 2016, eq. 10)."""
    return ((slope * s + 1) / 2).clamp(0, 1)


@dataclass(frozen=True)
class HMLSTM(Cell):
    """All layers of a hierarchical multiscale LSTM, as one cell.

    Its output has three parts: the gated sum over the layers, the boundaries, and their
    probabilities. Gate order: i, f, g, o, boundary.

    Args:
        num_layers: layers L; all but the last find boundaries.
        boundary: ``"step"``, ``"soft"``, ``"sample"`` or ``"given"``, by the last L − 1 inputs of a
            frame.
    """

    num_layers: int = 3
    boundary: str = "step"
    states = ("h", "c", "z")
    dropouts = ("hidden",)
    reads_frames = True

    @property
    def sites(self) -> tuple[str, ...]:
        """Return the sites of every layer; the term from above counts as recurrent."""
        kinds = ("input", "recurrent", "recurrent_above", "joint", "cell")
        top = f"recurrent_above_l{self.num_layers - 1}"
        sites = (f"{kind}_l{k}" for kind in kinds for k in range(self.num_layers))
        return tuple(site for site in sites if site != top)

    @property
    def _given(self) -> int:
        """The number of boundaries that a frame brings along."""
        return self.num_layers - 1 if self.boundary == "given" else 0

    def _rows(self, k: int, hidden_size: int) -> int:
        finds = k < self.num_layers - 1 and not self._given
        return 4 * hidden_size + int(finds)

    def blocks(self, site: str, hidden_size: int) -> list[int]:
        """Return one block: layer norm runs over all gates of a layer."""
        kind, _, k = site.rpartition("_l")
        return [hidden_size if kind == "cell" else self._rows(int(k), hidden_size)]

    def units(self, weights: Weights) -> int:
        """Return the number of units of a layer."""
        return weights.own["weight_hh_l0"].size(1)

    def state_sizes(self, hidden_size: int) -> tuple[int, ...]:
        """Return the widths of h, c and the boundaries, all layers side by side."""
        L = self.num_layers
        return L * hidden_size, L * hidden_size, L - 1

    def weights(self, input_size: int, hidden_size: int, bias: bool) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the weights of each layer, then those of the output."""
        L, H = self.num_layers, hidden_size
        shapes: dict[str, tuple[int, ...]] = {}
        for k in range(L):
            rows = self._rows(k, H)
            shapes[f"weight_ih_l{k}"] = rows, H if k else input_size - self._given
            shapes[f"weight_hh_l{k}"] = rows, H
            if k < L - 1:
                shapes[f"weight_ah_l{k}"] = rows, H
            if bias:
                shapes[f"bias_l{k}"] = (rows,)
        return shapes | {"weight_go": (L, L * H), "weight_ho": (H, L * H)}

    def shifts(self, weights: Weights, sites: tuple[str, ...]) -> dict[str, Tensor]:
        """Return each layer's bias, which is added to the sum of its terms."""
        own = weights.own
        layers = [k for k in range(self.num_layers) if f"bias_l{k}" in own]
        return {f"joint_l{k}": own[f"bias_l{k}"] for k in layers}

    def step(
        self,
        weights: Weights,
        x_term: Tensor,
        state: State,
        normalise: Normalise,
        t: int | Tensor,
    ) -> tuple[Tensor, State]:
        """Compute Chung et al. 2016, eq. 1–12, for boundaries of any value between 0 and 1.

        ``c = z i g + (1 - z) (z_below (f c + i g) + (1 - z_below) c)`` is FLUSH at z = 1, and at
        z = 0 UPDATE or COPY; z is the boundary of the step before.
        """
        own, L = weights.own, self.num_layers
        h, c = (list(s.chunk(L, 1)) for s in state[:2])
        seen = normalise("hidden", state[0]).chunk(L, 1)
        # the last layer finds no boundary, and layer 0 reads a new frame at each step
        flush: list[Tensor | float] = [*(state[2][:, k : k + 1] for k in range(L - 1)), 0.0]
        features = x_term.size(1) - self._given
        below, given = x_term[:, :features], x_term[:, features:]
        z_below: Tensor | float = 1.0
        z, probability = [], []
        for k in range(L):
            s = z_below * normalise(f"input_l{k}", self.product(below, own[f"weight_ih_l{k}"]))
            s = s + normalise(f"recurrent_l{k}", self.product(seen[k], own[f"weight_hh_l{k}"]))
            if k < L - 1:
                above = self.product(seen[k + 1], own[f"weight_ah_l{k}"])
                s = s + flush[k] * normalise(f"recurrent_above_l{k}", above)
            s = normalise(f"joint_l{k}", s)
            H = h[k].size(1)
            i, f, g, o = s[:, : 4 * H].chunk(4, 1)
            new = torch.sigmoid(i) * torch.tanh(g)
            copy = (1 - flush[k]) * (1 - z_below)
            update = (1 - flush[k]) * z_below
            c[k] = (flush[k] + update) * new + (update * torch.sigmoid(f) + copy) * c[k]
            new_h = torch.sigmoid(o) * torch.tanh(normalise(f"cell_l{k}", c[k]))
            h[k] = copy * h[k] + (1 - copy) * new_h
            below = h[k]
            if k < L - 1:
                if self._given:
                    probability.append(given[:, k : k + 1])
                else:
                    probability.append(hard_sigmoid(s[:, 4 * H :], own["boundary_slope"]))
                z.append(self._decide(probability[k]))
                z_below = z[k]
        every_h = torch.cat(h, 1)
        gates = torch.sigmoid(self.product(every_h, own["weight_go"]))
        gated = gates.repeat_interleave(H, 1) * every_h
        output = torch.relu(self.product(gated, own["weight_ho"]))
        boundaries = torch.cat(z, 1) if z else state[2]
        return torch.cat([output, *z, *probability], 1), (every_h, torch.cat(c, 1), boundaries)

    def _decide(self, probability: Tensor) -> Tensor:
        if self.boundary in ("soft", "given"):
            return probability
        if self.boundary == "sample":
            return torch.bernoulli(probability.detach())
        hard = (probability > 0.5).to(probability.dtype)
        # straight-through: the gradient is the gradient of the probability
        return probability + (hard - probability).detach()
