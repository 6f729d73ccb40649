"""The equations of a graph as a cell, which the reference runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rnnorm.cells.cell import Cell, Normalise, State, Weights
from rnnorm.kernels.equations.graph import SITES, Graph


@dataclass(frozen=True)
class GraphCell(Cell):
    """A cell made of a graph, whose weights have the kernels' names.

    Weights by unit are named as peepholes, and a matrix or vector that multiplies h is
    ``weight_hh``, a vector that nothing reads where the graph has no product. ``bias_ih`` is added
    to the input term, and ``bias_hh`` to the recurrent term if the two are read apart.

    Args:
        option: name in the kernels' options.
        graph: the equations.
        vectors: the graph's names of the weights by unit, in the order of ``names``.
        names: names of these weights here.
    """

    option: str
    graph: Graph
    vectors: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def gates(self) -> tuple[int, ...]:  # type: ignore[override]
        """Return the number of gates in each block."""
        return self.graph.gates

    @property
    def states(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the names of the states, h and c first as the kernels' masks name them."""
        return ("h", "c", "c_2", "c_3")[: len(self.graph.states)]

    @property
    def heads(self) -> int:  # type: ignore[override]
        """Return the number of heads, whose units read each other's h alone."""
        return self.graph.heads

    @property
    def sites(self) -> tuple[str, ...]:
        """Return the sites that the step asks for, and the joint one if the terms are summed."""
        asked = self.graph.sites
        found = {"input", *asked} - {"hidden", "candidate"}
        return tuple(sorted(found if self.graph.separate else {*found, "joint"}))

    def weights(self, input_size: int, hidden_size: int, bias: bool) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the weights."""
        shapes = super().weights(input_size, hidden_size, bias)
        if self.graph.independent:
            shapes["weight_hh"] = (hidden_size,)
        return shapes | dict.fromkeys(self.names, (hidden_size,))

    def units(self, weights: Weights) -> int:
        """Return the number H of units: ``weight_hh`` may be a vector."""
        return weights.weight_ih.size(0) // sum(self.gates)

    def shifts(self, weights: Weights, sites: tuple[str, ...]) -> dict[str, Tensor]:
        """Return each bias at its term's site, or their sum where the terms are summed."""
        if not self.graph.separate:
            return super().shifts(weights, sites)
        biases = {"input": weights.bias_ih, "recurrent": weights.bias_hh}
        return {site: bias for site, bias in biases.items() if bias is not None}

    def step(
        self,
        weights: Weights,
        x_term: Tensor,
        state: State,
        normalise: Normalise,
        t: int | Tensor,
    ) -> tuple[Tensor, State]:
        """Compute the nodes of the graph."""
        graph, h = self.graph, state[0]
        seen = normalise("hidden", h) if "hidden" in graph.sites else h
        weight = weights.weight_hh
        both = term = x_term
        if graph.product:
            term = weight * seen if graph.independent else self.product(seen, weight)
            if "recurrent" in graph.sites:
                term = normalise("recurrent", term)
            both = x_term + term
        if "joint" in graph.sites:
            both = normalise("joint", both)
        gates = sum(graph.gates)
        terms = {
            "x": x_term.chunk(gates, 1),
            "h": term.chunk(gates, 1),
            "both": both.chunk(gates, 1),
        }
        own = dict(zip(self.vectors, self.names, strict=True))
        values: list[Any] = []
        for name, inputs, value in graph.nodes:
            operands = [values[place] for place in inputs]
            if name in terms:
                result: Any = terms[name][value]  # type: ignore[index]
            elif name == "state":
                result = state[value]  # type: ignore[index]
            elif name == "weight":
                result = weights.own[own[value]]  # type: ignore[index]
            elif name == "number":
                result = value
            elif name in SITES:
                result = normalise(name, *operands)
            else:
                result = _evaluate(name, operands, h)
            values.append(result)
        after = tuple([values[place] for place in graph.states])
        return after[0], after


def _evaluate(name: str, operands: list[Any], like: Tensor) -> Tensor:
    """Compute a pointwise operator, whose operands may be numbers."""
    # some of torch's operators take no number in some places
    tensors = [o if isinstance(o, Tensor) else like.new_tensor(o) for o in operands]
    result: Tensor = getattr(torch, name)(*tensors)
    return result
