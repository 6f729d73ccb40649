"""The equations of a graph as a cell, which the reference runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rnnorm.cells.cell import Cell, Normalise, State, Weights, separate_biases
from rnnorm.kernels.equations.graph import SITES, Graph
from rnnorm.norm.moments import Moments
from rnnorm.norm.spec import field_of


@dataclass(frozen=True)
class GraphCell(Cell):
    """A cell made of a graph, whose weights have the kernels' names.

    The matrix or vector that multiplies h is ``weight_hh``; of a graph with two products it has the
    rows of both matrices, and of one without a product it is a vector that nothing reads. The other
    weights by unit have the names of peepholes. ``bias_ih`` is added to the input term, and
    ``bias_hh`` to the recurrent term if the two terms are read apart.

    Args:
        option: name in the kernels' options.
        graph: the equations.
        vectors: the graph's names of the weights by unit, in the order of ``names``.
        names: names of these weights here. Weights of one name are the rows of one tensor.
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
        """Return names of the states: h and c first, since the kernels' masks have these names."""
        return ("h", "c", "c_2", "c_3")[: len(self.graph.states)]

    @property
    def heads(self) -> int:  # type: ignore[override]
        """Return the number of heads."""
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
        return shapes | {n: (self.names.count(n) * hidden_size,) for n in self.names}

    def units(self, weights: Weights) -> int:
        """Return the number H of units: ``weight_hh`` may be a vector."""
        return weights.weight_ih.size(0) // sum(self.gates)

    def shifts(self, weights: Weights, sites: tuple[str, ...]) -> dict[str, Tensor]:
        """Return each bias at its term's site, or their sum where the terms are summed."""
        separate = self.graph.separate
        shifts = separate_biases(weights) if separate else super().shifts(weights, sites)
        return split_products(self.graph, shifts)

    def blocks(self, site: str, hidden_size: int) -> list[int]:
        """Return the widths of a site's blocks: one where a term is of one of two products."""
        if self.graph.second and field_of(site) in ("recurrent", "joint"):
            return [hidden_size * self.gates["_" in site]]
        return super().blocks(site, hidden_size)

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
        gates, first = sum(graph.gates), graph.first_gates
        x = x_term.chunk(gates, 1)
        terms: dict[str, list[Tensor]] = {"x": [*x], "h": [], "both": []}

        def add_terms(x_part: Tensor, term: Tensor | None, which: str, joint: str) -> None:
            if term is not None:
                term = normalise(which, term) if which in graph.sites else term
                terms["h"] += term.chunk(term.size(1) // h.size(1), 1)
            both = x_part if term is None else x_part + term
            both = normalise(joint, both) if joint in graph.sites else both
            terms["both"] += both.chunk(both.size(1) // h.size(1), 1)

        H, second = h.size(1), graph.second
        product = None
        if graph.independent:
            product = weight * seen if graph.product else None
        else:
            product = self.product(seen, weight[: first * H])
        add_terms(x_term[:, : first * H], product, "recurrent", "joint")
        own = self._own(weights, H)
        values: list[Any] = []
        for index, (name, inputs, value) in enumerate(graph.nodes):
            operands = [values[index] for index in inputs]
            if name in terms:
                result: Any = terms[name][value]  # type: ignore[index]
            elif name == "state":
                result = state[value]  # type: ignore[index]
            elif name == "weight":
                result = own[value]  # type: ignore[index]
            elif name == "number":
                result = value
            elif name in SITES:
                result = normalise(name, *operands)
            else:
                result = _evaluate(name, operands, h)
            values.append(result)
            if second and index == second.operand:
                sites = graph.second_site("recurrent"), graph.second_site("joint")
                add_terms(x_term[:, first * H :], self.product(result, weight[first * H :]), *sites)
        after = tuple([values[index] for index in graph.states])
        return after[0], after

    def _own(self, weights: Weights, hidden_size: int) -> dict[str, Tensor]:
        """Return the weights by unit, by the graph's names."""
        rows = {name: iter(torch.split(weights.own[name], hidden_size)) for name in {*self.names}}
        pairs = zip(self.vectors, self.names, strict=True)
        return {vector: next(rows[name]) for vector, name in pairs}


def split_products(graph: Graph, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Split each tensor that has the columns of two products into one for each product's site.

    Args:
        graph: the equations.
        tensors: tensors by site, whose columns are the last dimension.
    """
    found = dict(tensors)
    for site in ("recurrent", "joint"):
        other = graph.second_site(site)
        if other and site in found:
            both = found[site]
            first = both.size(-1) * graph.first_gates // sum(graph.gates)
            found[site], found[other] = both[..., :first], both[..., first:]
    return found


def split_moments(graph: Graph, taken: Mapping[str, Moments]) -> dict[str, Moments]:
    """Split means and variances as ``split_products`` splits tensors."""
    means, variances = (
        split_products(graph, {site: moments[k] for site, moments in taken.items()})
        for k in range(2)
    )
    return {s: (mean.contiguous(), variances[s].contiguous()) for s, mean in means.items()}


def join_products(graph: Graph, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Join the tensors of two products' sites, the reverse of ``split_products``.

    A site that has no tensor gets zeros.

    Args:
        graph: the equations.
        tensors: tensors by site, whose columns are the last dimension.
    """
    found = dict(tensors)
    for site in ("recurrent", "joint"):
        other = graph.second_site(site)
        if other and (site in found or other in found):
            parts = _with_equal_steps([found.pop(name, None) for name in (site, other)])
            like, gates = next(p for p in parts if p is not None), graph.gates
            units = like.size(-1) // gates[parts[0] is None]
            found[site] = concatenate(
                -1,
                *[
                    like.new_zeros(*like.shape[:-1], count * units) if part is None else part
                    for part, count in zip(parts, gates, strict=True)
                ],
            )
    return found


class _Concatenate(torch.autograd.Function):
    """``torch.cat``, after which no part may be changed in place before the backward pass.

    A kernel saves the whole for its backward pass, where the reference saves the parts.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(dim: int, *parts: Tensor) -> Tensor:
        """Concatenate the parts."""
        return torch.cat(parts, dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save the parts, whose versions autograd compares."""
        ctx.dim, *parts = inputs
        ctx.save_for_backward(*parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return the gradient of each part.

        Raises:
            RuntimeError: if a part was changed in place.
        """
        sizes = [part.size(ctx.dim) for part in ctx.saved_tensors]
        return (None, *torch.split(grad, sizes, ctx.dim))


concatenate: Any = _Concatenate.apply


def _with_equal_steps(parts: list[Tensor | None]) -> list[Tensor | None]:
    """Repeat the last row of moments ``(R, B, F)``, which serves all later steps, to one R."""
    counts = [p.size(0) for p in parts if p is not None and p.dim() > 2]
    if len({*counts}) < 2:
        return parts
    steps = torch.arange(max(counts), device=next(p for p in parts if p is not None).device)
    return [p if p is None else p[steps.clamp(max=p.size(0) - 1)] for p in parts]


def _evaluate(name: str, operands: list[Any], like: Tensor) -> Tensor:
    """Compute a pointwise operator, whose operands may be numbers."""
    # some of torch's operators take no number as some arguments
    tensors = [o if isinstance(o, Tensor) else like.new_tensor(o) for o in operands]
    result: Tensor = getattr(torch, name)(*tensors)
    return result
