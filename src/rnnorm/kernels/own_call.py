"""A call of a user's cell as a call of its graph, whose weights have the kernel's names."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from rnnorm.cells.cell import Cell, Weights, separate_biases
from rnnorm.kernels.call import LayerCall
from rnnorm.kernels.equations.graph import Graph
from rnnorm.kernels.equations.graph_cell import GraphCell, concatenate, join_products
from rnnorm.kernels.equations.opaque import TraceError
from rnnorm.kernels.inputs import PEEPHOLES
from rnnorm.norm.spec import CELL_SITES


def names_of(cell: GraphCell) -> Mapping[str, str]:
    """Return the user's name of each weight by the kernel's name; empty where the cell has none."""
    return {
        **dict.fromkeys(PEEPHOLES, ""),
        **dict(zip(cell.names, cell.vectors, strict=True)),
        "weight_hh": cell.graph.product,
        "weight_hr": "",
    }


def adds_as_the_kernel(cell: Cell, graph: Graph, weights: Weights, active: tuple[str, ...]) -> bool:
    """Tell whether a cell adds its two biases unchanged, where the kernel adds them too."""
    prepared = type(cell).prepare is not Cell.prepare
    if not graph.product or graph.second or prepared or len(graph.weights) > len(PEEPHOLES):
        # a short call reads parameters, and nothing that is computed from them
        return False
    if graph.product in graph.weights:
        # one parameter would be two arguments
        return False
    if type(cell).shifts is Cell.shifts:
        return not graph.separate
    found, given = cell.shifts(weights, active), separate_biases(weights)
    alike = found.keys() == given.keys() and all([found[site] is given[site] for site in given])
    return alike and graph.separate and "recurrent" in graph.sites


def graph_call(cell: GraphCell, call: LayerCall) -> LayerCall:
    """Return a call of a user's cell as a call of its graph, with the kernel's names of weights."""
    units = call.state[0].size(1)
    prepared = call.cell.prepare(call.weights)
    given = prepared._asdict() | dict(prepared.own)
    rows: dict[str, list[Tensor]] = {}
    for vector, name in zip(cell.vectors, cell.names, strict=True):
        weight, _, gate = vector.partition("[")
        first = int(gate[:-1] or 0) * units
        row = given[weight][first : first + units] if gate else given[weight]
        rows.setdefault(name, []).append(row)
    own = {name: concatenate(0, *each) if each[1:] else each[0] for name, each in rows.items()}
    shifts = _shifts(call.cell, call.weights, call.cell.active_sites(call.norm), cell.graph)
    product = cell.graph.product
    recurrent = given[product] if product else call.state[0].new_zeros(units)
    if second := cell.graph.second:
        recurrent = concatenate(0, recurrent, given[second.product])
    weights = Weights(call.weights.weight_ih, recurrent, *shifts, own=own)
    return call._replace(cell=cell, weights=weights)


def with_products_joined(cell: GraphCell, call: LayerCall) -> LayerCall:
    """Return a call of a graph with the terms of its two products as one term at one site."""
    graph = cell.graph
    if not graph.second or not call.gamma:
        return call
    means, variances = (
        join_products(graph, {site: moments[k] for site, moments in call.constants.items()})
        for k in range(2)
    )
    constants = {site: (mean, variances[site]) for site, mean in means.items()}
    return call._replace(gamma=join_products(graph, call.gamma), constants=constants)


def _shifts(
    cell: Cell, weights: Weights, active: tuple[str, ...], graph: Graph
) -> tuple[Tensor | None, Tensor | None]:
    """Return what a cell adds to its input or joint term, and to its recurrent term.

    Raises:
        TraceError: if it adds to another term, or to one that is normalised again.
    """
    first: list[Tensor] = []
    second: Tensor | None = None
    for site, shift in join_products(graph, cell.shifts(weights, active)).items():
        if site in graph.passed:
            raise TraceError(f"it shifts the term of the site {site!r}")
        if (site in active and site in CELL_SITES) or (site not in ("input", *graph.sites)):
            # the site has a shift of its own, or the step does not ask for the site
            continue
        if site in CELL_SITES or ("joint" in active and site != "joint"):
            raise TraceError(f"it shifts the term of the site {site!r}")
        if site == "recurrent":
            second = shift
        else:
            first.append(shift)
    return (sum(first[1:], first[0]) if first else None), second
