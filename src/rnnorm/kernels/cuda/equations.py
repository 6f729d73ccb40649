"""CUDA C++ of a cell's equations and of their gradients, for the kernels of many steps.

A thread computes one unit of one row, whose numbers stand in registers. ``first_half`` ends at
the first state beside h, which a cell site normalises, and ``second_half`` at h. Going back,
``to_site`` ends at the output of the cell site, and ``gradients`` begins again at h, with the
whole gradient of that state: the compiler shares what both compute. With two recurrent products
``second_operand`` is what the second one multiplies, and ``to_second`` ends at its terms.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Mapping

from rnnorm.kernels.equations.graph import COMPARISONS, LEAVES, Graph, Nodes
from rnnorm.kernels.equations.graph_cell import GraphCell
from rnnorm.kernels.equations.halves import Halves, check_room
from rnnorm.kernels.equations.statements import ARITHMETIC, Statements
from rnnorm.kernels.equations.trace import trace
from rnnorm.kernels.inputs import PEEPHOLES
from rnnorm.kernels.known_cells import CELLS

#: the most gates, weights by unit and states beside h for which a thread has registers
MOST_GATES, MOST_WEIGHTS, MOST_STATES = 4, 16, 3
# operators whose values are kept for the backward pass; values of others are computed again
_COSTLY = ("div", "sqrt", "exp", "log", "log1p", "sigmoid", "tanh")
# the leaf ``grad`` that is the gradient of what a second product multiplies
_OF_OPERAND = -1
# operators whose values or gradients may be infinite where the terms and states are 0
_INFINITE = ("div", "sqrt", "exp", "log")
# functions of functions.cuh, or CUDA's own
_EXPRESSIONS = {
    **ARITHMETIC,
    "neg": "-({})",
    "abs": "fabsf({})",
    "sqrt": "sqrtf({})",
    "exp": "exponential({})",
    "log": "logf({})",
    "log1p": "log1pf({})",
    "sigmoid": "sigmoid({})",
    "tanh": "tanh_({})",
    "relu": "rectifier({})",
    "minimum": "minimum({}, {})",
    "maximum": "maximum({}, {})",
    "clamp_min": "{0} < {1} ? {1} : {0}",
    "clamp_max": "{0} > {1} ? {1} : {0}",
    "lerp": "(1.f - {2}) * {0} + {2} * {1}",
    "where": "{} ? {} : {}",
    "hidden": "{} * s.seen",
    "candidate": "{} * s.mask",
}
_LEAVES = {"x": "s.x[{}]", "h": "s.y[{}]", "both": "s.x[{0}] + s.y[{0}]", "site": "s.site"}
_STRUCTS = """
// One unit of a row at one step. Given are the finished input terms x, which are 0 where their sum
// with the recurrent terms is normalised, the finished recurrent or summed terms y, the states of
// the step before, weights and the masks of h and of the candidate; what is computed follows.
struct Step {
  float x[GATES], y[GATES], h, before[MORE], weight[SLOTS], seen, mask;
  float states[MORE], site, kept[KEPT];
};
// The gradients of what is given.
struct Gradients {
  float x[GATES], y[GATES], h, before[MORE], weight[SLOTS];
};
"""


class Scalars(Statements):
    """The body of a function of a ``Step`` called s.

    Args:
        nodes: the equations.
        slots: by name of a weight, its position in the kernel's arguments.
        loads: by node, an expression that loads it, so that it is not computed.
    """

    def __init__(self, nodes: Nodes, slots: Mapping[str, int], loads: Mapping[int, str]) -> None:
        super().__init__(nodes, loads)
        self.slots = slots

    def constant(self, value: object) -> str:
        """Return a number of the type float."""
        try:
            bits = struct.unpack("I", struct.pack("f", value))[0]
        except OverflowError:
            bits = 0x7F800000 if float(str(value)) > 0 else 0xFF800000
        if bits & 0x7F800000 == 0x7F800000:
            return f"__uint_as_float({bits:#x}u)"
        return f"{value!r}f"

    def expression(self, index: int) -> str:
        """Return the expression of a node, after the statements that compute its inputs."""
        name, inputs, value = self.nodes[index]
        if name in _LEAVES:
            return _LEAVES[name].format(value)
        if name == "state":
            return f"s.before[{int(value) - 1}]" if value else "s.h"
        if name == "weight":
            return f"s.weight[{self.slots[str(value)]}]"
        if name == "grad":
            if value == _OF_OPERAND:
                return "d_operand"
            return f"d_states[{int(value) - 1}]" if value else "d_h"
        return _EXPRESSIONS[name].format(*map(self.value, inputs))

    def statement(self, index: int, expression: str) -> str:
        """Return the statement that gives a node its name."""
        kind = "bool" if self.nodes[index].name in COMPARISONS else "float"
        return f"const {kind} {self.names[index]} = {expression};"

    def store(self, where: str, index: int | None) -> None:
        """Store a node, or 0 where it is None."""
        self.lines.append(f"{where} = {'0.f' if index is None else self.value(index)};")


class Equations(Halves):
    """The halves of a graph as functions.

    Args:
        graph: the graph.
        slots: by name of a weight with one number for each unit, its position among the arguments.

    Raises:
        TraceError: if a thread has no room for the equations.
    """

    def __init__(self, graph: Graph, slots: Mapping[str, int]) -> None:
        check_room(
            (sum(graph.gates), MOST_GATES, "gates"),
            (len(graph.weights), MOST_WEIGHTS, "weights by unit"),
            (len(graph.states), MOST_STATES + 1, "states"),
        )
        super().__init__(graph)
        self.slots = slots
        #: places for weights by unit in a ``Step``; built-in cells take those of ``PEEPHOLES``
        self.places = max(len(PEEPHOLES), len(slots))
        #: nodes that are computed from the output of the cell site, and h
        self.late = self.after_site()
        grads = [self.nodes.add("grad", (), k) for k in range(len(graph.states))]
        ends = () if self.site is None else (self.site,)
        seeds = self.seeds([self.h, *self.states], grads)
        #: gradients without the part through what a second product multiplies, which needs these
        self.known = self.gradients(seeds, ends)
        if self.operand is not None:
            through = self.nodes.add("grad", (), _OF_OPERAND)
            seeds = self.seeds([*seeds, self.operand], [*seeds.values(), through])
        self.whole = self.gradients(seeds, ends)
        #: gradient of the cell site's output, None where there is none
        self.into_site: int | None = None
        if self.site is not None:
            others = self.seeds([self.h, *self.states[1:]], [grads[0], *grads[2:]])
            self.into_site = self.gradients(others, ends).of.get(self.site)
        self.kept = sorted({*self.crossing({*LEAVES} - {"both"}), *self._read_back()})

    def _read_back(self) -> set[int]:
        """Return what the gradients read of both halves, and would compute anew at some cost."""
        ends = {p for p in range(self.count) if self.nodes[p].name in (*_COSTLY, "both", "site")}
        ends |= {*self.states}
        results = [
            *(self.into_site, *self.known.h, *self.whole.h, *self.whole.x),
            *(*self.whole.before, *self.whole.weights),
        ]
        found = self.nodes.needed([index for index in results if index is not None], ends)
        return {p for p in found & ends if self.nodes[p].name != "site"} - {*self.states}

    def text(self) -> str:
        """Return the constants, types and functions of the equations."""
        gates, blocks = self.graph.gates, len(self.graph.gates)
        starts = [sum(gates[:k]) for k in range(1, blocks)]
        block = " + ".join([f"(gate >= {start})" for start in starts]) or "0"
        count = "".join([f"block == {k} ? {n} : " for k, n in enumerate(gates[:-1])])
        count += str(gates[-1])
        facts = {
            "int GATES": sum(gates),
            "int FIRST_GATES": self.graph.first_gates,
            "int BLOCKS": blocks,
            "int STATES": len(self.states),
            "int MORE": max(1, len(self.states)),
            "int KEPT": max(1, len(self.kept)),
            "int WEIGHTS": len(self.graph.weights),
            "int SLOTS": self.places,
            "bool HAS_SITE": self.site is not None,
            "bool SKIPS": self.graph.skips,
            "bool FINITE": not any([node.name in _INFINITE for node in self.nodes]),
        }
        return "\n".join(
            [
                "// Generated by rnnorm/kernels/cuda/equations.py from a cell's step.",
                *[f"constexpr {fact} = {str(value).lower()};" for fact, value in facts.items()],
                *_function("constexpr int block_of(int gate)", [f"return {block};"]),
                *_function("constexpr int gates_of_block(int block)", [f"return {count};"]),
                _STRUCTS,
                *_function("float second_operand(const Step& s)", self._second_operand()),
                *_function("void first_half(Step& s)", self._first_half()),
                *_function("float second_half(Step& s)", self._second_half()),
                *_function(f"float to_site(const Step& s, {_GIVEN})", self._to_site()),
                *_function(f"void to_second(const Step& s, {_GIVEN}, {_TERMS})", self._to_second()),
                *_function(
                    f"void gradients(const Step& s, {_GIVEN}, float d_operand, Gradients& d)",
                    self._back(),
                ),
            ]
        )

    def _body(self, loads: Mapping[int, str] | None = None) -> Scalars:
        return Scalars(self.nodes, self.slots, loads or {})

    def _loads(self, indices: Iterable[int]) -> dict[int, str]:
        """Return how values are loaded that stand in a ``Step``."""
        loads = {index: f"s.kept[{self.kept.index(index)}]" for index in indices}
        return loads | {index: f"s.states[{k}]" for k, index in enumerate(self.states)}

    def _second_operand(self) -> list[str]:
        code = self._body()
        result = "0.f" if self.operand is None else code.value(self.operand)
        return [*code.lines, f"return {result};"]

    def _first_half(self) -> list[str]:
        code = self._body()
        self._store(code, late=False)
        return code.lines

    def _second_half(self) -> list[str]:
        loads = self._loads([index for index in self.kept if index not in self.late])
        code = self._body({p: load for p, load in loads.items() if p not in self.late})
        self._store(code, late=True)
        h = code.value(self.h)
        return [*code.lines, f"return {h};"]

    def _store(self, code: Scalars, *, late: bool) -> None:
        """Store the states and kept values of one half."""
        for array, indices in (("states", self.states), ("kept", self.kept)):
            for k, index in enumerate(indices):
                if (index in self.late) == late:
                    code.store(f"s.{array}[{k}]", index)

    def _to_site(self) -> list[str]:
        code = self._body(self._loads(self.kept))
        result = "0.f" if self.into_site is None else code.value(self.into_site)
        return [*code.lines, f"return {result};"]

    def _to_second(self) -> list[str]:
        code = self._body(self._loads(self.kept))
        for gate, index in enumerate(self.known.h):
            code.store(f"d_y[{gate}]", index if gate >= self.graph.first_gates else None)
        return code.lines

    def _back(self) -> list[str]:
        code = self._body(self._loads(self.kept))
        for gate, (x, y) in enumerate(zip(self.whole.x, self.whole.h, strict=True)):
            code.store(f"d.x[{gate}]", x)
            code.store(f"d.y[{gate}]", y)
        h, *before = self.whole.before
        code.store("d.h", h)
        for k, index in enumerate(before):
            code.store(f"d.before[{k}]", index)
        weights = dict(zip(self.graph.weights, self.whole.weights, strict=True))
        of_slot = {self.slots[name]: index for name, index in weights.items()}
        for slot in range(self.places):
            code.store(f"d.weight[{slot}]", of_slot.get(slot))
        return code.lines


# arguments: the gradients of h, and of the states beside h
_GIVEN = "float d_h, const float (&d_states)[MORE]"
# results: the gradients of the recurrent terms, 0 for those of the first of two products
_TERMS = "float (&d_y)[GATES]"


def _function(signature: str, body: list[str]) -> list[str]:
    return [f"DEVICE {signature} {{", *[f"  {line}" for line in body], "}"]


@functools.cache
def text_of(name: str, weights: tuple[int, ...]) -> str:
    """Return the CUDA C++ of a cell's equations.

    Args:
        name: name of the cell in ``Options``.
        weights: positions among ``PEEPHOLES`` of the weights by unit that the layer has.

    Raises:
        TraceError: if a thread has no room for the equations.
    """
    given = {PEEPHOLES[slot] for slot in weights}
    cell = next(c for c in CELLS[name] if given <= c.weights(1, c.heads, False).keys())
    if not isinstance(cell, GraphCell):
        return Equations(trace(cell), {n: slot for slot, n in enumerate(PEEPHOLES)}).text()
    return Equations(cell.graph, {vector: k for k, vector in enumerate(cell.vectors)}).text()
