"""The derivative of a cell's equations, in reverse mode, as nodes of the same graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rnnorm.kernels.equations.graph import LEAVES, Nodes


class Algebra:
    """Operators on indices of nodes, without the factors 1 and the terms 0."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes

    def number(self, value: float) -> int:
        """Return a number."""
        return self.nodes.add("number", (), value)

    def apply(self, name: str, *inputs: int) -> int:
        """Return an operator's result."""
        return self.nodes.add(name, inputs)

    def times(self, a: int, b: int) -> int:
        """Return the product of two values."""
        one = self.number(1.0)
        return b if a == one else a if b == one else self.apply("mul", a, b)

    def plus(self, a: int | None, b: int | None) -> int | None:
        """Return the sum of two values, where None is 0."""
        return b if a is None else a if b is None else self.apply("add", a, b)

    def parts(self, index: int, grad: int) -> list[int | None]:
        """Return the gradient of each input of a node, from the gradient of the node.

        The gradients are those of torch, also at nan, and where two values are equal. They may be
        infinite where torch has nan, if the same infinite value is written twice.
        """
        name, inputs, _ = self.nodes[index]
        apply, times = self.apply, self.times
        zero, one = self.number(0.0), self.number(1.0)
        a, b, c = (*inputs, zero, zero)[:3]
        if name == "add":
            return [grad, grad]
        if name == "sub":
            return [grad, apply("neg", grad)]
        if name == "mul":
            return [times(grad, b), times(grad, a)]
        if name == "div":
            return [apply("div", grad, b), apply("neg", times(grad, apply("div", index, b)))]
        if name == "neg":
            return [apply("neg", grad)]
        if name == "abs":
            # a product, in which a gradient of nan remains
            negative = apply("where", apply("lt", a, zero), self.number(-1.0), zero)
            return [times(grad, apply("where", apply("gt", a, zero), one, negative))]
        if name == "sqrt":
            return [apply("div", grad, apply("add", index, index))]
        if name == "exp":
            return [times(grad, index)]
        if name == "log":
            return [apply("div", grad, a)]
        if name == "log1p":
            return [apply("div", grad, apply("add", one, a))]
        if name == "sigmoid":
            return [times(times(grad, index), apply("sub", one, index))]
        if name == "tanh":
            return [times(grad, apply("sub", one, apply("mul", index, index)))]
        if name == "relu":
            return [apply("where", apply("le", index, zero), zero, grad)]
        if name in ("minimum", "maximum"):
            lost = "gt" if name == "minimum" else "lt"
            half = times(grad, self.number(0.5))
            return [
                apply(
                    "where",
                    apply("eq", a, b),
                    half,
                    apply("where", apply(lost, one_input, other), zero, grad),
                )
                for one_input, other in ((a, b), (b, a))
            ]
        if name in ("clamp_min", "clamp_max"):
            # imported here, as the build of the package has no torch and clamps nothing
            from rnnorm.tracing import RELEASE

            # from torch 2.14 on, a value at its bound has no gradient
            below, above = ("lt", "gt") if RELEASE >= (2, 14) else ("le", "ge")
            kept = above if name == "clamp_min" else below
            return [apply("where", apply(kept, a, b), grad, zero), None]
        if name == "lerp":
            rest = apply("sub", one, c)
            return [times(grad, rest), times(grad, c), times(grad, apply("sub", b, a))]
        if name == "where":
            return [None, apply("where", a, grad, zero), apply("where", a, zero, grad)]
        if name in ("hidden", "candidate"):
            return [apply(name, grad)]
        # a comparison has no gradient
        return [None] * len(inputs)


def adjoints(nodes: Nodes, seeds: Mapping[int, int], stops: Collection[int] = ()) -> dict[int, int]:
    """Return the gradient of every node that results are computed from, as a node.

    Args:
        nodes: the equations, to which the nodes of their derivative are added.
        seeds: the gradient of each result.
        stops: nodes whose gradient does not go on to their inputs.
    """
    algebra = Algebra(nodes)
    found: dict[int, int | None] = dict(seeds)
    for index in range(max(seeds), -1, -1):
        grad = found.get(index)
        if grad is None or index in stops or nodes[index].name in LEAVES:
            continue
        parts = algebra.parts(index, grad)
        for given, part in zip(nodes[index].inputs, parts, strict=True):
            found[given] = algebra.plus(found.get(given), part)
    return {index: grad for index, grad in found.items() if grad is not None}
