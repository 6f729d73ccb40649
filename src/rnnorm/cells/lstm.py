"""The LSTM cell."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rnnorm.cells.cell import Cell, Normalise, State, Weights


@dataclass(frozen=True)
class LSTM(Cell):
    """Long short-term memory.

    Args:
        peephole: None, ``"output"`` (o reads c_t; Laurent et al. 2015) or ``"all"`` (i and f read
            c_{t-1} too; Graves 2013), with one weight for each unit; ``"full"`` is ``"all"`` with
            matrices.
    """

    peephole: str | None = None
    gates = (4,)
    states = ("h", "c")
    dropouts = ("hidden", "candidate", "zoneout_h", "zoneout_c")
    sites = ("input", "recurrent", "joint", "cell", "carry")

    def weights(self, input_size: int, hidden_size: int, bias: bool) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the weights: those of torch.nn, then the peepholes."""
        names = {None: "", "output": "o"}.get(self.peephole, "ifo")
        shape = (hidden_size,) * (2 if self.peephole == "full" else 1)
        peepholes = {f"weight_c{gate}": shape for gate in names}
        return super().weights(input_size, hidden_size, bias) | peepholes

    def step(
        self,
        weights: Weights,
        x_term: Tensor,
        state: State,
        normalise: Normalise,
        t: int | Tensor,
    ) -> tuple[Tensor, State]:
        """Compute Cooijmans et al. 2016, eq. 6–8, and torch.nn's projection (``proj_size``).

        A peephole reads the carried c, not its normalised copy; it is added to normalised terms.
        """
        h, c = state
        i, f, g, o = self.preactivation(weights, x_term, h, normalise).chunk(4, 1)
        if self.peephole in ("all", "full"):
            i = i + self._seen(c, weights.own["weight_ci"])
            f = f + self._seen(c, weights.own["weight_cf"])
        g = normalise("candidate", torch.tanh(g))
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * g
        c = normalise("carry", c)
        if self.peephole is not None:
            o = o + self._seen(c, weights.own["weight_co"])
        h = torch.sigmoid(o) * torch.tanh(normalise("cell", c))
        if weights.weight_hr is not None:
            h = self.product(h, weights.weight_hr)
        return h, (h, c)

    def _seen(self, c: Tensor, weight: Tensor) -> Tensor:
        """Return what a gate sees of c through its peephole."""
        return self.product(c, weight) if self.peephole == "full" else weight * c
