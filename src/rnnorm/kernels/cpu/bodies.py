"""The bodies of a cell's functions in C++, from its equations and their derivative.

The frame (``csrc/step.h``) calls them for each tile of hidden units. Without a cell site there are
``forward``, from the terms to h, and ``backward``, to all gradients. With a cell site there are
four: ``forward`` ends at the first state beside h, which the frame normalises; ``output`` goes from
the normalised copy to h, and ``output_backward`` back to that copy; ``backward`` goes on from the
whole gradient of the state, which the frame then knows. The gradient of what the equations read is
a part that ``output_backward`` knows, plus a factor times that whole gradient: one of the two is
kept until ``backward``, and the other is computed again.

With two recurrent products, ``first`` makes what the second one multiplies before ``forward``, and
``second_backward`` the gradient of the second one's term before ``backward``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rnnorm.kernels.cpu.statements import Vectors
from rnnorm.kernels.equations.graph import Graph
from rnnorm.kernels.equations.halves import Halves, NodeGradients, check_room
from rnnorm.kernels.equations.opaque import TraceError

#: the most weights of units, and states beside h, for which the frame has room
MOST_WEIGHTS, MOST_STATES = 16, 3
#: the most values beside states that the second half of a step reads of the first
MOST_CROSSING = 4
_FETCH = ["L::template fetch<C>(s.h, r, u);", "L::template fetch<C>(s.x, r, u);"]
_FETCH_STATE = "L::template fetch<U>(s.cell, r, u);"
_OUTPUT = "L::template grad_output<Extra>(s, r, u)"
_CARRIED = "const auto carried = L::template carried<Extra>(s, r, u);"


class Equations(Halves):
    """The halves of a graph as bodies of loops over rows and units."""

    def __init__(self, graph: Graph, optional: bool) -> None:
        check_room(
            (len(graph.weights), MOST_WEIGHTS, "weights by unit"),
            (len(graph.states), MOST_STATES + 1, "states"),
        )
        super().__init__(graph)
        self.optional = optional

    def statements(self, loads: Mapping[int, str] | None = None) -> Vectors:
        """Return an empty body."""
        return Vectors(self.nodes, self.graph.weights, self.optional, loads or {})

    def _fetch(self) -> list[str]:
        """Return the prefetching of the terms, which costs more than it saves with one gate."""
        return _FETCH if sum(self.graph.gates) > 1 else []

    def forward(self) -> list[str]:
        """Return the body from the terms to h, or to what the second half reads."""
        code, late = self.statements(), self.after_site() if self.site is not None else set()
        code.lines += self._fetch()
        self._store_states(code, [c for c in self.states if c not in late])
        for k, index in enumerate(self._crossing()):
            code.store(_scratch(k), index)
        if self.site is None:
            self._finish(code, self.states[0] if self.states else None)
        return code.lines

    def output(self) -> list[str]:
        """Return the body from the cell site's output to h."""
        loads = {c: _after(k) for k, c in enumerate(self.states)}
        late = self.after_site()
        for c in late:
            loads.pop(c, None)
        loads |= {index: f"load<W>({_scratch(k)})" for k, index in enumerate(self._crossing())}
        code = self.statements(loads)
        self._store_states(code, [c for c in self.states if c in late])
        self._finish(code, self.site)
        return code.lines

    def _store_states(self, code: Vectors, some: list[int]) -> None:
        for k, c in enumerate(self.states):
            if c in some:
                code.value(c)
                # the state before stands in the same place, unless states are kept
                if (before := self.leaf("state", k + 1)) is not None:
                    code.value(before)
                code.store(f"s.state[{k}].after + r * U + u", c)

    def _finish(self, code: Vectors, carried: int | None) -> None:
        """Store h, and what the next step reads of the first state beside h."""
        h = code.value(self.h)
        if carried is not None:
            code.lines.append(f"if (Extra) L::carry(s, r, u, {code.value(carried)});")
        code.lines.append(f"L::template store_h<Extra>(s, r, u, {h});")

    def _crossing(self) -> list[int]:
        """Return what the second half reads of the first one, and the frame keeps beside states.

        Raises:
            TraceError: if there are more values than the frame has room for.
        """
        if self.site is None:
            return []
        late = self.after_site()
        overwritten = {
            self.leaf("state", k + 1) for k, c in enumerate(self.states) if c not in late
        }
        found = [
            index
            for index in self.crossing(("number", "weight"))
            if self.nodes[index].name != "state" or index in overwritten
        ]
        if len(found) > MOST_CROSSING:
            raise TraceError(
                f"{len(found)} values are read after its cell site, beside states, of which the "
                f"kernel keeps {MOST_CROSSING} at most"
            )
        return found

    @property
    def halfway(self) -> int:
        """The number of values that a step's first half leaves for its second, backward's too."""
        return max(1, len(self._crossing()))

    def first(self) -> list[str]:
        """Return the body from the first product's term to what the second product multiplies."""
        code = self.statements()
        self._store_operand(code)
        return code.lines

    def _store_operand(self, code: Vectors) -> None:
        assert self.operand is not None
        value = code.value(self.operand)
        code.lines.append(f"L::store_operand(s, r, u, {value});")

    def second_backward(self) -> list[str]:
        """Return the body to the gradient of the second product's term.

        The gradient of h is kept, and what that product multiplies is stored for its weights'
        gradient.
        """
        code, grads = self._begin(_OUTPUT)
        code.store(_scratch(0), grads[0])
        self._store_operand(code)
        found = self.gradients(self.seeds([self.h, *self.states], grads))
        self._store_h(code, found)
        self._store_terms(code, found.h, [], range(self.graph.first_gates, len(found.h)))
        return code.lines

    def _begin(self, from_output: str) -> tuple[Vectors, list[int]]:
        """Return a body with the gradients of h and of all states, and their nodes."""
        code = self.statements({c: _after(k) for k, c in enumerate(self.states)})
        code.lines += [*self._fetch(), *[_FETCH_STATE] * (self.site is not None)]
        code.lines += [f"const V dh = {from_output};"]
        code.lines += [_CARRIED] * bool(self.states)
        grads = [self.nodes.add("grad", (), k) for k in range(len(self.states) + 1)]
        for k in range(2, len(grads)):
            code.lines.append(f"const V grad{k} = load<W>(s.state[{k - 1}].grad + r * U + u);")
        names = ["dh", "carried.fresh", *[f"grad{k}" for k in range(2, len(grads))]]
        code.names |= dict(zip(grads, names, strict=False))
        return code, grads

    def backward(self) -> tuple[list[str], str]:
        """Return the body of all gradients, and its number of sums."""
        code, grads = self._begin(f"load<W>({_scratch(0)})" if self.graph.second else _OUTPUT)
        results = [self.h, *self.states]
        if self.operand is not None:
            grads.append(self.nodes.add("grad", (), -1))
            results.append(self.operand)
            code.names[grads[-1]] = "du"
            code.lines.append("const V du = L::grad_operand(s, r, u);")
        found = self.gradients(self.seeds(results, grads))
        self._store_h(code, found)
        self._store_terms(code, found.h, found.x, range(self.graph.first_gates))
        if self.graph.skips:
            self._skip(code, found.before[0], False)
        for k, grad in enumerate(found.before[1:]):
            self._store_before(code, k, grad)
        return code.lines, self._sum(code, found.weights)

    def _store_h(self, code: Vectors, found: NodeGradients) -> None:
        """Let gradients read h where the step has stored it, if they read it."""
        results = [*found.h, *found.x, *found.before, *found.weights]
        if self.h in self.nodes.needed([index for index in results if index is not None]):
            # after zoneout the cell's own h is not stored
            code.loads[self.h] = f"Extra ? {code.expression(self.h)} : L::h_after(s, r, u)"

    def backward_in_two(self) -> tuple[tuple[list[str], str], tuple[list[str], str]]:
        """Return the bodies up to the cell site's output, and from there, each with its sums."""
        assert self.site is not None
        c, *others = self.states
        code, grads = self._begin(_OUTPUT)
        seeds = self.seeds([self.h, *others], [grads[0], *grads[2:]])
        known = self.gradients(seeds, {self.site, c})
        factor = self.gradients({c: self.algebra.number(1.0)})
        # one of both is kept until the whole gradient of c is known, the other computed anew
        kept = NodeGradients({}, *map(_first_or_second, known[1:], factor[1:]))
        return self._up_to_site(code, known, kept), self._from_site(known, factor, kept)

    def _up_to_site(
        self, code: Vectors, known: NodeGradients, kept: NodeGradients
    ) -> tuple[list[str], str]:
        """Return the body that stores what is kept, and the gradient of the cell site's output."""
        self._store_terms(code, kept.h, kept.x)
        code.store(_scratch(0), kept.before[1])
        for k, grad in enumerate(known.before[2:], start=1):
            code.store(f"s.state[{k}].grad + r * U + u", grad)
        if known.before[0] is not None:
            self._skip(code, known.before[0], False)
        assert self.site is not None
        into_site = code.value(known.of[self.site]) if self.site in known.of else "V{}"
        code.lines += [
            f"V into_cell = {into_site};",
            "if (Extra && s.carry) into_cell += carried.fresh;",
            "store<W>(s.grad_cell + r * U + u, into_cell);",
        ]
        return code.lines, self._sum(code, known.weights)

    def _from_site(
        self, known: NodeGradients, factor: NodeGradients, kept: NodeGradients
    ) -> tuple[list[str], str]:
        """Return the body that adds the part of the whole gradient of c, and stores all others."""
        code = self.statements(self._loads_of(kept))
        code.lines += [
            _CARRIED,
            "V dc = load<W>(s.grad_cell + r * U + u);",
            "if (!Extra || !s.carry) dc += carried.fresh;",
        ]
        rest = self.nodes.add("grad", (), -1)
        code.names[rest] = "dc"
        dc = self.algebra.plus(rest, known.of.get(self.states[0]))
        assert dc is not None

        def whole(a: int | None, b: int | None) -> int | None:
            return self.algebra.plus(a, None if b is None else self._times(dc, b, code.loads))

        h, x = (
            [whole(*pair) for pair in zip(knowns, factors, strict=True)]
            for knowns, factors in ((known.h, factor.h), (known.x, factor.x))
        )
        before = whole(known.before[1], factor.before[1])
        # those of other states have been stored without the part that dc adds
        others_before = [whole(None, grad) for grad in factor.before[2:]]
        weights = [None if b is None else whole(None, b) for b in factor.weights]
        # the terms are stored where their kept parts lie
        for index in (*h, *x, before, *others_before, *weights):
            if index is not None:
                code.value(index)
        self._store_terms(code, h, x)
        self._store_before(code, 0, before)
        for k, grad in enumerate(others_before, start=1):
            if grad is not None:
                more = code.value(grad)
                code.lines.append(f"L::add_to(s.state[{k}].grad + r * U + u, {more});")
        if factor.before[0] is not None:
            self._skip(code, whole(None, factor.before[0]), known.before[0] is not None)
        elif self.graph.skips and known.before[0] is None:
            self._skip(code, None, False)
        return code.lines, self._sum(code, weights)

    def _loads_of(self, kept: NodeGradients) -> dict[int, str]:
        """Return, by node, where the second body loads the states and what is kept."""
        loads = {state: _after(k) for k, state in enumerate(self.states)}
        for where, indices in ((_dx, kept.x), (_dz, kept.h)):
            if where is _dz or self.graph.separate:
                loads |= {p: f"load<W>({where(g)})" for g, p in enumerate(indices) if p is not None}
        if (kept_c := kept.before[1]) is not None:
            loads[kept_c] = f"load<W>({_scratch(0)})"
        return {p: load for p, load in loads.items() if self.nodes[p].name != "number"}

    def _times(self, grad: int, factor: int, kept: Mapping[int, str]) -> int:
        """Return the product of two values, by way of a product that is computed anyway."""
        name, inputs, _ = self.nodes[factor]
        for k, part in enumerate(inputs):
            if name == "mul" and factor not in kept and part in kept:
                return self.algebra.times(self.algebra.times(grad, part), inputs[1 - k])
        return self.algebra.times(grad, factor)

    def _store_terms(
        self,
        code: Vectors,
        h: list[int | None],
        x: list[int | None],
        gates: Iterable[int] | None = None,
    ) -> None:
        """Store the gradients of the recurrent term's gates, or of some, and of the input term."""
        for g in range(len(h)) if gates is None else gates:
            code.store(_dz(g), h[g])
        for g, index in enumerate(x):
            if self.graph.separate:
                code.store(_dx(g), index)
            elif self.graph.second:
                # the second product's gradient has left its normalisation before x has its own
                value = "V{}" if index is None else code.value(index)
                code.lines.append(f"if (!Fused) store<W>({_dx(g)}, {value});")

    def _skip(self, code: Vectors, index: int | None, more: bool) -> None:
        """Store the gradient of h that skips the recurrent product, or add to it."""
        value = "V{}" if index is None else code.value(index)
        code.lines.append(f"L::template skip<Extra, {str(more).lower()}>(s, r, u, {value});")

    def _store_before(self, code: Vectors, k: int, index: int | None) -> None:
        """Store the gradient of a state of the step before."""
        if k:
            return code.store(f"s.state[{k}].grad + r * U + u", index)
        value = "V{}" if index is None else code.value(index)
        code.lines.append(f"L::template grad_before<Extra>(s, r, u, {value}, carried.stays);")
        return None

    def _sum(self, code: Vectors, weights: list[int | None]) -> str:
        """Add the gradients of weights of units to their sums; return how many sums there are."""
        if all([index is None for index in weights]):
            return "0"
        sums = []
        for k, index in enumerate(weights):
            if index is not None:
                sums.append(f"if (s.grad_peephole[{k}]) sum[{k}] += {code.value(index)};")
        if not self.optional:
            code.lines += sums
            return "weights"
        code.lines += ["if constexpr (Extra) {", *[f"  {line}" for line in sums], "}"]
        return "Extra ? weights : 0"


def _first_or_second(first: list[int | None], second: list[int | None]) -> list[int | None]:
    return [b if a is None else a for a, b in zip(first, second, strict=True)]


def _scratch(k: int) -> str:
    return f"s.halfway + (r * halfway + {k}) * U + u"


def _after(k: int) -> str:
    return f"load<W>(s.state[{k}].after + r * U + u)"


def _dz(gate: int) -> str:
    return f"s.grad_zh + r * C + {gate} * U + u"


def _dx(gate: int) -> str:
    return f"s.grad_zx + r * C + {gate} * U + u"
