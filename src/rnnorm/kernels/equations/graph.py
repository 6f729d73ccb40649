"""A cell's equations as a graph, from which compiled kernels are generated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

#: a gate of the input term, of the recurrent term, and of their sum; a state of the step before; a
#: weight with one number for each unit; a number
LEAVES = ("x", "h", "both", "state", "weight", "number")
#: sites with one gate's columns: recurrent dropout of h and of the candidate, and norms of a state
SITES = ("hidden", "candidate", "cell", "carry")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


class Node(NamedTuple):
    """One value of a step, H columns wide.

    Attributes:
        name: a leaf, a site or an operator.
        inputs: the nodes that it is computed from, by their indices in the graph.
        value: gate of a term, index of a state, name of a weight, or number, of a leaf.
    """

    name: str
    inputs: tuple[int, ...] = ()
    value: int | float | str | None = None


class Nodes(list[Node]):
    """A growing list of nodes, each of which stands behind its inputs and has no equal."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        super().__init__()
        self._indices: dict[tuple[object, ...], int] = {}
        for node in nodes:
            self.add(*node)

    def add(
        self, name: str, inputs: tuple[int, ...] = (), value: int | float | str | None = None
    ) -> int:
        """Return the index of a node, which is added unless it is there."""
        if name in ("add", "mul") and inputs[0] > inputs[1]:
            inputs = inputs[1], inputs[0]
        # -0.0 equals 0.0, and is another number
        index = self._indices.setdefault((name, inputs, repr(value)), len(self))
        if index == len(self):
            self.append(Node(name, inputs, value))
        return index

    def needed(self, results: Iterable[int], stops: Iterable[int] = ()) -> set[int]:
        """Return results and all nodes that they are computed from, without the inputs of stops."""
        found: set[int] = set()
        ends = set(stops)
        left = list(results)
        while left:
            index = left.pop()
            if index not in found:
                found.add(index)
                if index not in ends:
                    left += self[index].inputs
        return found


class Second(NamedTuple):
    """A second recurrent product, of a value made from the first, with the second block of gates.

    Attributes:
        product: name of its weight.
        operand: index of what the weight multiplies.
    """

    product: str
    operand: int


class Graph(NamedTuple):
    """The equations of one step.

    Attributes:
        nodes: what the next states are computed from, inputs first.
        states: index of each next state; the first is the output.
        gates: number of gates in each block, as in ``Cell.gates``.
        sites: the sites that the step asks for, sorted, ``"hidden"`` and ``"candidate"`` too.
        product: name of the weight of the recurrent product, empty without a product.
        independent: whether that weight is a vector, or there is none; without one the input term,
            which is then the only one, counts as the sum.
        heads: number of heads. A unit reads the h of the units of its head alone.
        second: the second recurrent product of a step that has two.
        passed: sites that the step asks for with what no kernel normalises; a layer runs on a
            kernel only if its norm leaves them out.
    """

    nodes: tuple[Node, ...]
    states: tuple[int, ...]
    gates: tuple[int, ...]
    sites: tuple[str, ...]
    product: str
    independent: bool
    heads: int
    second: Second | None = None
    passed: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Return a text that is equal for two graphs of the same equations."""
        return repr(tuple(self))

    def leaves(self, name: str) -> list[int]:
        """Return the indices of the leaves, or the sites, of one name."""
        return [index for index, node in enumerate(self.nodes) if node.name == name]

    @property
    def weights(self) -> list[str]:
        """Return the names of the weights that have one number for each unit."""
        return [str(self.nodes[index].value) for index in self.leaves("weight")]

    @property
    def separate(self) -> bool:
        """Tell whether the two terms are read apart, so that their gradients differ."""
        return bool(self.leaves("x") or self.leaves("h"))

    @property
    def first_gates(self) -> int:
        """Return the number of gates of the first recurrent product."""
        return self.gates[0] if self.second else sum(self.gates)

    def second_site(self, site: str) -> str:
        """Return the second product's site beside the first one's, empty where it has none."""
        found = [name for name in self.sites if self.second and name.startswith(f"{site}_")]
        return found[0] if found else ""

    @property
    def skips(self) -> bool:
        """Tell whether h reaches the next step without the recurrent product."""
        return any(self.nodes[index].value == 0 for index in self.leaves("state"))
