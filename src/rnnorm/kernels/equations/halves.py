"""A cell's equations in two halves, as every compiled kernel computes them, and their gradients.

The first half ends at the first state beside h, which is the input of a cell site. The second half
begins with that state's normalised copy, and ends at h. Without a cell site there is one half.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from rnnorm.kernels.equations.derivative import Algebra, adjoints
from rnnorm.kernels.equations.graph import Graph, Nodes
from rnnorm.kernels.equations.opaque import TraceError


def check_room(*counts: tuple[int, int, str]) -> None:
    """Check that a kernel has room for equations.

    Args:
        *counts: how many there are of something, how many a kernel has at most, and what they are.

    Raises:
        TraceError: if there are too many of one kind.
    """
    for count, most, what in counts:
        if count > most:
            raise TraceError(f"it has {count} {what}, of which the kernel has {most} at most")


class Halves:
    """The nodes of a graph, whose cell site is a leaf ``site``, and those of their gradients.

    Attributes:
        graph: the graph.
        nodes: its nodes, and those that gradients add.
        count: number of its own nodes.
        site: index of the cell site's output, None without a cell site.
        h: index of the output.
        states: indices of the states beside h.
        operand: index of what a second recurrent product multiplies, None without one.
        algebra: operators on the nodes.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = Nodes()
        self.site: int | None = None
        indices: list[int] = []
        own = "cell" if graph.leaves("cell") else "carry"
        for name, inputs, value in graph.nodes:
            given = tuple([indices[i] for i in inputs])
            if name == own:
                self.site = self.nodes.add("site", given)
                indices.append(self.site)
            elif name == "carry":
                # only the cell site reads the normalised state
                indices.append(given[0])
            else:
                indices.append(self.nodes.add(name, given, value))
        bare = [
            graph.nodes[index].inputs[0] if graph.nodes[index].name == "carry" else index
            for index in graph.states
        ]
        self.h, *self.states = [indices[index] for index in bare]
        if self.site is not None and self.nodes[self.site].inputs != tuple(self.states[:1]):
            raise TraceError("its cell site does not normalise its second state")
        self.operand = None if graph.second is None else graph.second.operand
        if self.operand is not None and self.site is not None:
            raise TraceError("it has a cell site beside two recurrent products")
        self.count = len(self.nodes)
        self.algebra = Algebra(self.nodes)

    def leaf(self, name: str, value: int | str) -> int | None:
        """Return the index of a leaf, None if the equations do not read it."""
        found = [p for p, n in enumerate(self.nodes[: self.count]) if n[::2] == (name, value)]
        return found[0] if found else None

    def after_site(self) -> set[int]:
        """Return the nodes that are computed from the output of the cell site, and h."""
        found = {self.h}
        for index in range(self.count):
            inputs = self.nodes[index].inputs
            if self.site is not None and (index == self.site or not found.isdisjoint(inputs)):
                found.add(index)
        return found

    def crossing(self, leaves: Collection[str]) -> list[int]:
        """Return what the second half reads of the first one beside states and ``leaves``."""
        late = self.after_site()
        read = {i for index in late if index != self.site for i in self.nodes[index].inputs}
        found = read - {*late, *self.states}
        return sorted([index for index in found if self.nodes[index].name not in leaves])

    def seeds(self, results: Iterable[int], grads: Iterable[int]) -> dict[int, int]:
        """Return the gradient of each result; two results may be the same node."""
        seeds: dict[int, int] = {}
        for result, grad in zip(results, grads, strict=True):
            seeds[result] = (
                self.algebra.apply("add", seeds[result], grad) if result in seeds else grad
            )
        return seeds

    def gradients(self, seeds: Mapping[int, int], stops: Iterable[int] = ()) -> NodeGradients:
        """Return the gradients of what the equations read, from those of their results."""
        found = adjoints(self.nodes, seeds, tuple(stops)) if seeds else {}

        def of(name: str, value: int | str) -> int | None:
            index = self.leaf(name, value)
            return None if index is None else found.get(index)

        gates = range(sum(self.graph.gates))
        both = [of("both", gate) for gate in gates]
        plus = self.algebra.plus
        return NodeGradients(
            found,
            [plus(both[gate], of("h", gate)) for gate in gates],
            [plus(both[gate], of("x", gate)) for gate in gates],
            [of("state", k) for k in range(len(self.states) + 1)],
            [of("weight", name) for name in self.graph.weights],
        )


class NodeGradients(NamedTuple):
    """The gradients of what equations read, as nodes; None is 0.

    Attributes:
        of: the gradient of every node.
        h: gradients of the recurrent terms, one for each gate.
        x: gradients of the input terms, one for each gate.
        before: gradients of the states of the step before.
        weights: gradients of the weights by unit.
    """

    of: Mapping[int, int]
    h: list[int | None]
    x: list[int | None]
    before: list[int | None]
    weights: list[int | None]
