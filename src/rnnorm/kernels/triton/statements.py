"""Statements of Python that compute the nodes of a cell's equations on tiles, for Triton."""

from __future__ import annotations

from rnnorm.kernels.equations.statements import ARITHMETIC, Statements

# a minimum, a maximum and a rectifier keep nan, as torch's do
_FUNCTIONS = {
    "neg": "-{}",
    "abs": "tl.abs({})",
    "sqrt": "tl.sqrt({})",
    "exp": "tl.exp({})",
    "log": "tl.log({})",
    "log1p": "log1p({})",
    "sigmoid": "tl.sigmoid({})",
    "tanh": "tanh({})",
    "relu": "tl.where({0} < 0, 0.0, {0})",
    "minimum": "tl.where(({0} < {1}) | ({0} != {0}), {0}, {1})",
    "maximum": "tl.where(({0} > {1}) | ({0} != {0}), {0}, {1})",
    "clamp_min": "tl.where({0} < {1}, {1}, {0})",
    "clamp_max": "tl.where({0} > {1}, {1}, {0})",
    "lerp": "(1 - {2}) * {0} + {2} * {1}",
    "where": "tl.where({}, {}, {})",
}
# the arguments of the functions of ``generate.Equations``, which a gradient's node names
_LEAVES = {
    "x": "x[{}]",
    "h": "y[{}]",
    "grad": "{}",
    "state": "before",
    "site": "normal",
}


class Tiles(Statements):
    """The body of a function of tiles, one for each gate or state."""

    def value(self, index: int) -> str:
        """Return the name of a node, after the statements that compute it."""
        name, inputs, value = self.nodes[index]
        if index in self.loads:
            return self.loads[index]
        if name in _LEAVES:
            return _LEAVES[name].format(value)
        # no mask of recurrent dropout multiplies the candidate
        return self.value(inputs[0]) if name == "candidate" else super().value(index)

    def constant(self, value: object) -> str:
        """Return a number as a tile."""
        return f"number({_literal(value)}, TILE)"

    def statement(self, index: int, expression: str) -> str:
        """Return the statement that gives a node its name."""
        return f"{self.names[index]} = {expression}"

    def expression(self, index: int) -> str:
        """Return the expression of a node, after the statements that compute its inputs."""
        name, _, value = self.nodes[index]
        if name == "both":
            return f"x[{value}] + y[{value}]"
        template = ARITHMETIC.get(name) or _FUNCTIONS[name]
        return template.format(*self.operands(index, _literal))


def _literal(value: object) -> str:
    """Return a number in Python."""
    text = repr(value)
    return f'float("{text}")' if text in ("inf", "-inf", "nan") else text
