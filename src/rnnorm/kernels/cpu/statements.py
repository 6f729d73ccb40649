"""Statements of C++ that compute the nodes of a cell's equations by vectors of units."""

from __future__ import annotations

from collections.abc import Mapping

from rnnorm.kernels.equations.graph import COMPARISONS, Nodes
from rnnorm.kernels.equations.statements import ARITHMETIC, Statements

# functions of csrc/functions.h and members of csrc/step.h
_FUNCTIONS = {
    "neg": "-{}",
    "abs": "magnitude<W, T>({})",
    "sqrt": "square_root<W, T>({})",
    "exp": "power_of_e<W, T>({})",
    "log": "logarithm<W, T>({})",
    "log1p": "logarithm_of_more<W, T>({})",
    "sigmoid": "sigmoid<W, T>({})",
    "tanh": "hyperbolic_tangent<W>({})",
    "relu": "rectifier<W, T>({})",
    "minimum": "minimum<W, T>({}, {})",
    "maximum": "maximum<W, T>({}, {})",
    "clamp_min": "{0} < {1} ? {1} : {0}",
    "clamp_max": "{0} > {1} ? {1} : {0}",
    "lerp": "(T(1) - {2}) * {0} + {2} * {1}",
    "where": "{} ? {} : {}",
    "hidden": "{} * L::drawn(s.seen, s, r, u, T(1))",
    "candidate": "{} * L::template candidate_mask<Extra>(s, r, u)",
}
# name and expression of each leaf, by members of csrc/step.h
_LEAVES = {
    "x": ("x{}", "L::template term<C>(s.x, r, {} * U + u)"),
    "h": ("h{}", "L::template term<C>(s.h, r, {} * U + u)"),
    "both": ("z{}", "L::template both<C, Fused>(s, r, {} * U + u)"),
    "site": ("normal", "L::template term<U>(s.cell, r, u)"),
}


def number(value: object) -> str:
    """Return a number of the type T."""
    text = repr(value)
    named = {"inf": "__builtin_inf()", "-inf": "-__builtin_inf()", "nan": '__builtin_nan("")'}
    return f"T({named.get(text, text)})"


class Vectors(Statements):
    """The body of a loop over rows and vectors of units.

    Args:
        nodes: the equations.
        weights: names of the weights of units, in the order of ``rnnorm_layer.peephole``.
        optional: whether each of these may be absent.
        loads: by node, an expression that loads it, so that it is not computed.
    """

    def __init__(
        self, nodes: Nodes, weights: list[str], optional: bool, loads: Mapping[int, str]
    ) -> None:
        super().__init__(nodes, loads)
        self.weights, self.optional = weights, optional

    def constant(self, value: object) -> str:
        """Return a number in every lane of a vector."""
        return f"all<W>({number(value)})"

    def name(self, index: int) -> str:
        """Return what a node is called: terms and states by what they are."""
        name, _, value = self.nodes[index]
        if name == "state":
            return f"before{value}"
        return _LEAVES.get(name, ("v" + str(index), ""))[0].format(value)

    def statement(self, index: int, expression: str) -> str:
        """Return the statement that gives a node its name."""
        kind = "auto" if self.nodes[index].name in COMPARISONS else "V"
        return f"const {kind} {self.names[index]} = {expression};"

    def expression(self, index: int) -> str:
        """Return the expression of a node, after the statements that compute its inputs."""
        name, _, value = self.nodes[index]
        if name in _LEAVES:
            return _LEAVES[name][1].format(value)
        if name == "state":
            state = f"load<W>(s.state[{int(value or 0) - 1}].before + r * U + u)"
            return state if value else "L::h_before(s, r, u)"
        if name == "weight":
            return f"load<W>(s.peephole[{self.weights.index(str(value))}] + u)"
        seen = self._seen(index) if self.optional and name in ("add", "mul") else ""
        if seen:
            return seen
        template = ARITHMETIC.get(name) or _FUNCTIONS[name]
        return template.format(*self.operands(index, number))

    def _seen(self, index: int) -> str:
        """Return a sum with the product of a weight that may be absent, if a node is one."""
        name, inputs, _ = self.nodes[index]
        for part in (index,) if name == "mul" else inputs[::-1]:
            factors = self.nodes[part].inputs
            weight = [i for i in factors if self.nodes[i].name == "weight"]
            if self.nodes[part].name != "mul" or not weight or part in self.names:
                continue
            slot = self.weights.index(str(self.nodes[weight[0]].value))
            start = "V{}" if name == "mul" else self.value(sum(inputs) - part)
            factor = self.value(sum(factors) - weight[0])
            return f"L::template plus_seen<Extra>(s, {slot}, u, {start}, {factor})"
        return ""

    def store(self, where: str, index: int | None) -> None:
        """Store a node, or zeros where it is None."""
        self.lines.append(f"store<W>({where}, {'V{}' if index is None else self.value(index)});")
