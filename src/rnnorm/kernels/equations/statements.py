"""Statements that compute the nodes of a cell's equations, in any language."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from rnnorm.kernels.equations.graph import COMPARISONS, Nodes

_COMPARED = ("{} < {}", "{} <= {}", "{} > {}", "{} >= {}", "{} == {}", "{} != {}")
#: expressions of the operators that every language writes alike
ARITHMETIC = {
    "add": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "div": "{} / {}",
    **dict(zip(COMPARISONS, _COMPARED, strict=True)),
}


class Statements(ABC):
    """The body of a function, in which each node is computed once.

    Args:
        nodes: the equations.
        loads: by node, an expression that loads it, so that it is not computed.
    """

    def __init__(self, nodes: Nodes, loads: Mapping[int, str]) -> None:
        self.nodes, self.loads = nodes, dict(loads)
        self.lines: list[str] = []
        self.names: dict[int, str] = {}

    def value(self, index: int) -> str:
        """Return the name of a node, after the statements that compute it."""
        name, _, value = self.nodes[index]
        if name == "number":
            return self.constant(value)
        if index not in self.names:
            expression = self.loads.get(index) or self.expression(index)
            self.names[index] = self.name(index)
            self.lines.append(self.statement(index, expression))
        return self.names[index]

    def operands(self, index: int, literal: Callable[[object], str]) -> list[str]:
        """Return the inputs of a node; in arithmetic a number beside another value is a literal.

        Args:
            index: index of the node.
            literal: writes a number that the language makes as wide as the value beside it.
        """
        name, inputs, _ = self.nodes[index]
        bare = [name in ARITHMETIC and self.nodes[i].name == "number" for i in inputs]
        return [
            literal(self.nodes[i].value) if scalar and not all(bare) else self.value(i)
            for i, scalar in zip(inputs, bare, strict=True)
        ]

    def name(self, index: int) -> str:
        """Return the name of a node in the statements."""
        return f"v{index}"

    @abstractmethod
    def constant(self, value: object) -> str:
        """Return a number as an operand of a function."""

    @abstractmethod
    def expression(self, index: int) -> str:
        """Return the expression of a node, after the statements that compute its inputs."""

    @abstractmethod
    def statement(self, index: int, expression: str) -> str:
        """Return the statement that gives a node its name."""
