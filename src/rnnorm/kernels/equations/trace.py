"""The trace of a cell: its ``step``, called with columns that note what is computed of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rnnorm.cells.cell import Cell, Weights
from rnnorm.kernels.equations.columns import Columns, Matrix
from rnnorm.kernels.equations.graph import COMPARISONS, SITES, Graph, Node, Nodes, Second
from rnnorm.kernels.equations.opaque import Age, Opaque, TraceError, Width, kind_of


def unlike_a_site(site: str) -> str:
    """Say that a step normalises at a site what no kernel does."""
    return f"the site {site!r} is not one of a term, h, the candidate or a state"


def trace(
    cell: Cell, hidden_size: int | None = None, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Graph:
    """Return the equations of ``cell.step``.

    Args:
        cell: the cell.
        hidden_size: number H of units; by default 16 for each head.
        shapes: shapes of the weights by name; by default those of a layer with biases.

    Raises:
        TraceError: if the step is more than two recurrent products and pointwise operators.
    """
    hidden_size = 16 * cell.heads if hidden_size is None else hidden_size
    if cell.reads_frames:
        raise TraceError("its step computes the input products (reads_frames)")
    if cell.state_sizes(hidden_size) != (hidden_size,) * len(cell.states):
        raise TraceError("it has states of other widths than its units")
    step = TracedStep(cell, hidden_size)
    shapes = cell.weights(1, hidden_size, True) if shapes is None else shapes
    try:
        weights = step.weights(shapes)
        if type(cell).prepare is not Cell.prepare and not _leaves_as_they_are(cell, weights):
            weights = step.weights(_prepared_shapes(cell, shapes))
        x_term = Columns(step, [step.add("x", (), g) for g in range(sum(cell.gates))])
        state: Any = tuple(
            [Columns(step, [step.add("state", (), k)]) for k in range(len(cell.states))]
        )
        # columns stand for tensors
        result: Any = cell.step(weights, x_term, state, step.normalise, Age())  # type: ignore
        output, after = result
        return step.graph(output, after)
    except TraceError:
        raise
    except Exception as error:
        raise TraceError(
            f"its step or prepare raised {type(error).__name__} when it was traced: {error}"
        ) from error


def _leaves_as_they_are(cell: Cell, weights: Weights) -> bool:
    """Tell whether ``cell.prepare`` returns the weights that it gets."""
    try:
        return cell.prepare(weights) is weights
    except TraceError:
        # it computes with the weights
        return False


def _prepared_shapes(
    cell: Cell, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights that ``cell.prepare`` makes, of tensors without numbers."""
    given: dict[str, Any] = {n: torch.empty(s, device="meta") for n, s in shapes.items()}
    own = {name: given.pop(name) for name in [*given] if name not in Weights._fields}
    prepared = cell.prepare(Weights(**{"weight_hh": None, **given}, own=own))
    made = prepared._asdict() | dict(prepared.own)
    return {name: tuple(w.shape) for name, w in made.items() if isinstance(w, torch.Tensor)}


class TracedStep(Nodes):
    """The nodes of a step, its products, and the sites that it has asked for.

    Its nodes have more names than those of a graph: ``"raw"`` is a gate of a recurrent product that
    is not normalised, ``"sum"`` the sum of a gate's two terms, and ``"seen"`` the masked h.
    """

    def __init__(self, cell: Cell, hidden_size: int) -> None:
        super().__init__()
        self.cell = cell
        self.H = hidden_size
        self.gates = sum(cell.gates)
        # sites that it asks for with what a kernel normalises, and with other values
        self.asked: list[str] = []
        self.passed: list[str] = []
        self.product = ""
        # gates of the first recurrent product, and the second one
        self.first_gates = self.gates
        self.second: Second | None = None
        self.independent = False
        # gates whose recurrent term is normalised, and the sums that a joint site normalises
        self.normalised: list[int] = []
        self.joint: tuple[int, ...] = ()
        self.recorded = torch.is_grad_enabled()

    def _check_recorded(self) -> None:
        """Refuse what autograd would not record, as in ``no_grad`` and in functions of one's own.

        Raises:
            TraceError: if gradients are recorded around the step, and not at this place in it.
        """
        if self.recorded and not torch.is_grad_enabled():
            raise TraceError("it computes where autograd records nothing")

    def weights(self, shapes: Mapping[str, tuple[int, ...]]) -> Weights:
        """Return what stands for the weights of a layer."""
        made: dict[str, Any] = {}
        for name, shape in shapes.items():
            gates, rest = divmod(shape[0] if len(shape) == 1 else 0, self.H)
            if gates == 0 or rest:
                made[name] = Matrix(name, shape, self)
            else:
                names = [name] if gates == 1 else [f"{name}[{gate}]" for gate in range(gates)]
                made[name] = Columns(self, [self.add("weight", (), n) for n in names], rank=1)
        own = {name: made.pop(name) for name in [*made] if name not in Weights._fields}
        return Weights(**{"weight_hh": None, **made}, own=own)

    def recurrent(self, h: object, weight: object) -> Columns:
        """Note a recurrent product, and return what stands for it, gate by gate."""
        self._check_recorded()
        if not isinstance(weight, Matrix) or not isinstance(h, Columns):
            raise TraceError("it has a product that is not of h and a matrix of the cell")
        if weight.name == "weight_ih" or not (self.product or self._is_h(h.columns)):
            raise TraceError(f"its first product, of {weight.name}, is not one with h")
        gates, rest = divmod(weight.sizes[0], self.H)
        if rest or weight.sizes[1:] != (self.H // self.cell.heads,):
            raise TraceError(
                f"{weight.name} has the shape {weight.sizes}, which is not that of gates"
            )
        if not self.product:
            self.product, self.first_gates = weight.name, gates
            return Columns(self, [self.add("raw", (), gate) for gate in range(gates)])
        if self.second or self.independent:
            raise TraceError("it has more than two recurrent products")
        if (self.first_gates, gates) != tuple(self.cell.gates):
            raise TraceError(
                f"it has recurrent products of {self.first_gates} and {gates} gates, which are not "
                f"the blocks of its gates {self.cell.gates}"
            )
        if self.cell.heads > 1 or len(h.columns) != 1 or h.compared:
            raise TraceError(
                "it has a second recurrent product of more than H numbers, or in heads"
            )
        self.second = Second(weight.name, h.columns[0])
        every = range(self.first_gates, self.gates)
        return Columns(self, [self.add("raw", (), gate) for gate in every])

    def _is_h(self, columns: Sequence[int]) -> bool:
        """Tell whether columns are h, as masked by recurrent dropout or not."""
        return len(columns) == 1 and self[columns[0]] in (Node("seen"), Node("state", (), 0))

    def normalise(self, site: str, z: Any) -> Columns:
        """Note a site, and return what stands for the normalised term."""
        self._check_recorded()
        if not isinstance(z, Columns):
            raise TraceError(f"the site {site!r} gets {kind_of(z)}")
        if site in (*self.asked, *self.passed):
            raise TraceError(f"it asks for the site {site!r} twice")
        if z.compared:
            raise TraceError(f"the site {site!r} gets a comparison")
        nodes = [self[column] for column in z.columns]
        self.asked.append(site)
        if site == "hidden" and self._is_h(z.columns):
            return Columns(self, [self.add("seen")])
        if site in ("candidate", "cell", "carry") and len(nodes) == 1:
            return Columns(self, [self.add(site, (z.columns[0],))])
        which, _, other = site.partition("_")
        gates = range(self.first_gates, self.gates) if other else range(self.first_gates)
        every = [node.value for node in nodes] == [*gates]
        if site == "recurrent" and nodes[0].name == "mul" and self._note_vector_product(nodes):
            every, nodes = True, [Node("raw")]
        if which == "recurrent" and every and nodes[0].name == "raw":
            self.normalised += gates
            return Columns(self, [self.add("h", (), gate) for gate in gates])
        # without a recurrent product the input term is the sum
        if which == "joint" and every and {node.name for node in nodes} in ({"sum"}, {"x"}):
            self.joint += z.columns
            return Columns(self, [self.add("both", (), gate) for gate in gates])
        if site in SITES:
            raise TraceError(unlike_a_site(site))
        # a layer whose norm leaves the site out has this value as it is
        self.passed.append(self.asked.pop())
        return z

    def _note_vector_product(self, nodes: Sequence[Node]) -> bool:
        """Note a vector weight times h as the recurrent product; tell whether a term is that."""
        names = [self[index] for index in nodes[0].inputs]
        weight = [node for node in names if node.name == "weight"]
        others = [p for p in nodes[0].inputs if self[p] not in weight]
        if self.gates != 1 or self.product or len(weight) != 1 or not self._is_h(others):
            return False
        self.product, self.independent = str(weight[0].value), True
        return True

    def pointwise(self, name: str, *operands: object) -> Columns:
        """Note a pointwise operator, and return what stands for its result, column by column."""
        self._check_recorded()
        width = max([len(o.columns) for o in operands if isinstance(o, Columns)])
        rank = max([o.rank for o in operands if isinstance(o, Columns)])
        inputs = []
        for k, operand in enumerate(operands):
            if isinstance(operand, Columns):
                if len(operand.columns) != width:
                    raise TraceError(f"{name} has operands of different widths")
                if operand.compared != (name == "where" and k == 0):
                    raise TraceError(
                        f"{name} computes with a comparison"
                        if operand.compared
                        else "it decides by numbers that are not a comparison"
                    )
                inputs.append(operand.columns)
            elif isinstance(operand, (int, float)) and not isinstance(operand, bool):
                inputs.append((self.add("number", (), float(operand)),) * width)
            elif isinstance(operand, (Opaque, Width)):
                raise TraceError(operand.reason)
            else:
                raise TraceError(f"{name} has {kind_of(operand)} as an operand")
        return Columns(self, [self._one(name, each) for each in zip(*inputs, strict=True)], rank)

    def _one(self, name: str, inputs: tuple[int, ...]) -> int:
        """Add one column's operator; the sum of a gate's two terms has a name of its own."""
        if name == "add":
            first, second = sorted([self[index] for index in inputs])
            if second.name == "x" and first.name in ("h", "raw") and first.value == second.value:
                return self.add("sum", inputs, first.value)
        return self.add(name, inputs)

    def graph(self, output: object, after: object) -> Graph:
        """Return the graph of the next states.

        Raises:
            TraceError: if the states cannot be computed from what the kernels keep.
        """
        states = self._states(output, after)
        results = [*states, *([self.second.operand] if self.second else [])]
        self._check_reads(results)
        stops = [index for index in self.needed(results) if self[index].name == "sum"]
        kept = Nodes()
        renamed = {"raw": "h"} if self.product else {"x": "both"}
        indices: dict[int, int] = {}
        for index in sorted(self.needed(results, stops)):
            name, inputs, value = self[index]
            if name == "sum":
                indices[index] = kept.add("both", (), value)
            elif name == "seen":
                indices[index] = kept.add("hidden", (kept.add("state", (), 0),))
            else:
                given = tuple([indices[i] for i in inputs])
                indices[index] = kept.add(renamed.get(name, name), given, value)
        return Graph(
            tuple(kept),
            tuple([indices[index] for index in states]),
            tuple(self.cell.gates),
            tuple(sorted(self.asked)),
            self.product,
            self.independent or not self.product,
            self.cell.heads,
            self.second and self.second._replace(operand=indices[self.second.operand]),
            tuple(sorted(self.passed)),
        )

    def _states(self, output: object, after: object) -> list[int]:
        """Return the indices of the next states.

        Raises:
            TraceError: if a step has not returned its output and states as kernels compute them.
        """
        if not isinstance(after, tuple) or len(after) != len(self.cell.states):
            raise TraceError(f"its step must return a tuple of {len(self.cell.states)} states")
        columns = [s.columns if isinstance(s, Columns) else () for s in (output, *after)]
        if any([len(each) != 1 for each in columns]):
            raise TraceError("its output or a state is not H columns wide")
        states = [each[0] for each in columns[1:]]
        if any([self[index].name in ("number", *COMPARISONS) for index in states]):
            raise TraceError("a state is a number or a comparison")
        if columns[0][0] != states[0]:
            raise TraceError("its output is not its first state")
        if self.first_gates != self.gates and not self.second:
            raise TraceError(
                f"its recurrent product has {self.first_gates} gates, its input term {self.gates}"
            )
        return states

    def _check_reads(self, results: Sequence[int]) -> None:
        """Check that results read no value that kernels do not keep.

        Raises:
            TraceError: if they do, or the step asks for a site of one of two products alone.
        """
        read = [self[index] for index in self.needed([*results, *self.joint])]
        names = {node.name for node in read}
        if any([node.name == "raw" and node.value in self.normalised for node in read]):
            raise TraceError("it reads the recurrent product beside its normalised term")
        terms = {"x", "raw", "h", "sum"}
        if self.joint and not {self[p].name for p in self.needed(results)}.isdisjoint(terms):
            raise TraceError("it reads the terms beside their normalised sum")
        if "seen" in names and not self.second:
            raise TraceError("it reads the masked h beside its recurrent product")
        if self.product and any([self[index].name == "x" for index in self.joint]):
            raise TraceError("it normalises the input term as the sum with the recurrent one")
        for site in ("recurrent", "joint"):
            others = [name for name in self.asked if name.startswith(f"{site}_")]
            if self.second and (site in self.asked) != bool(others):
                raise TraceError(f"it asks for the site {site!r} of one of its two products alone")
