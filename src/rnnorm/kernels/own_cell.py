"""Users' cells on a kernel: traced at each call, and compiled at their first one."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

import torch

from rnnorm.cells.cell import Cell, Weights
from rnnorm.kernels.call import LayerCall, Request, listed
from rnnorm.kernels.equations.graph import Graph
from rnnorm.kernels.equations.graph_cell import GraphCell, split_moments
from rnnorm.kernels.equations.opaque import TraceError
from rnnorm.kernels.equations.trace import trace, unlike_a_site
from rnnorm.kernels.inputs import PEEPHOLES
from rnnorm.kernels.known_cells import BUILT_IN, OWN, make_known
from rnnorm.kernels.own_call import graph_call, with_products_joined
from rnnorm.kernels.trace_check import difference
from rnnorm.norm.moments import Moments
from rnnorm.norm.spec import CELL_SITES, Norm
from rnnorm.tracing import constant

# the most different equations of one cell that are compiled
_MOST = 4
_CHANGES = f"its equations change at each call, or have changed {_MOST} times"
# methods of Cell that a kernel's frame computes, so a user's cell must not override them
_OF_THE_FRAME = ("active_sites", "blocks", "norms", "state_sizes", "units", "widths")


class Frame(Protocol):
    """A kernel's frame around equations, which compiles them."""

    def refuses_all(self, request: Request) -> str:
        """Say why the frame runs no user's cell for a request, empty if it may run some."""

    def unavailable(self) -> str:
        """Say why nothing can be compiled here, empty if it can."""

    def check(self, graph: Graph) -> None:
        """Check that the frame has room for equations.

        Raises:
            TraceError: if it has none.
        """

    def compiled(self, graph: Graph, request: Request) -> str | None:
        """Say why equations were not compiled, empty if they were, None if nobody has tried."""

    def compile(self, cell: GraphCell, request: Request) -> str:
        """Compile and load equations, unless they are; say why they cannot be, empty if so."""


@dataclass
class _Known:
    """The equations of a user's cell, and why kernels refuse them.

    It holds the cell and the norms, so that no other object gets their ids.

    Args:
        cell: the cell.
        keys: keys of the equations that it has had.
        changes: whether its equations change too often to be compiled.
        compared: by key and the norm's id, how ``step`` behaves unlike its trace, and the norm.
        forms: by frame, key, the norm's id, masked places and whether ranks are synchronized, why
            the frame cannot run the equations, and the norm.
    """

    cell: Cell
    keys: set[str] = field(default_factory=set)
    changes: bool = False
    compared: dict[tuple[str, int], tuple[str, Norm | None]] = field(default_factory=dict)
    forms: dict[tuple[Frame, str, int, tuple[str, ...], bool], tuple[str, Norm | None]] = field(
        default_factory=dict
    )


_known: dict[int, _Known] = {}
# graphs as cells, by the graph's key
_cells: dict[str, GraphCell] = {}
_lock = threading.RLock()
_without_compiling: ContextVar[bool] = ContextVar("rnnorm_without_compiling", default=False)


class _Chosen(threading.local):
    """The cell for which a kernel was chosen last in this thread, and its graph."""

    cell: Cell | None = None
    graph: GraphCell | None = None


_chosen = _Chosen()


def _after_fork() -> None:
    """Give a forked process a new lock: a thread that was not copied may hold the old one."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def without_compiling() -> Iterator[None]:
    """Compile nothing within the context, and draw no random numbers for a trace of a step.

    A cell that may be compiled counts as compiled.
    """
    token = _without_compiling.set(True)
    drawn = random.getstate(), torch.get_rng_state()
    try:
        yield
    finally:
        _without_compiling.reset(token)
        random.setstate(drawn[0])
        torch.set_rng_state(drawn[1])


def refuses(request: Request, frame: Frame) -> str:
    """Say why a user's cell does not run on a kernel, empty once it is compiled and loaded."""
    cell = request.cell
    try:
        why = _refuses(cell, request, frame)
    except TraceError as error:
        why = str(error)
    return f"it has no {cell}: {why}" if why else ""


def _refuses(cell: Cell, request: Request, frame: Frame) -> str:
    """Say why a user's cell is not compiled, empty once it is.

    Raises:
        TraceError: if its step is more than the kernel's frame computes.
    """
    if why := frame.refuses_all(request):
        return why
    known = _known.get(id(cell))
    if known is not None and known.changes:
        # not traced again, which could draw random numbers
        return _CHANGES
    graph = trace(cell)
    key = graph.key
    if frame.compiled(graph, request) != "" and (why := frame.unavailable()):
        return why
    with _lock:
        if _without_compiling.get():
            return _form_refused(graph, request, frame) or _known_to_refuse(graph, request, frame)
        known = _known.get(id(cell))
        if known is None:
            if len(_known) >= 1024:
                _known.clear()
            known = _known[id(cell)] = _Known(cell)
        form = frame, key, id(request.norm), request.masked, request.synchronized
        if form not in known.forms:
            known.forms[form] = _form_refused(graph, request, frame), request.norm
        why = known.forms[form][0] or _behaviour_refused(known, graph, key, request.norm)
        why = why or frame.compile(cell_of(graph), request)
    if not why:
        _chosen.cell, _chosen.graph = cell, _cells[key]
    return why


def _form_refused(graph: Graph, request: Request, frame: Frame) -> str:
    """Say why a kernel's frame does not run equations as a request asks, empty if it does.

    Raises:
        TraceError: if the equations need more than a step of the frame has.
    """
    cell = request.cell
    kind = type(cell)
    unlike = graph.independent or "weight_hh" not in cell.weights(1, 16 * cell.heads, False)
    # the blocks of two products' terms are compared below
    allowed = ("units", "blocks") if graph.second else ("units",) if unlike else ()
    for name in _OF_THE_FRAME:
        if getattr(kind, name) is not getattr(Cell, name) and name not in allowed:
            return f"it has {name} of its own"
    # refused before anything is compiled
    frame.check(graph)
    read = [name for name in graph.weights if name != graph.product]
    if unknown := [name for name in read if name.partition("[")[0] in Weights._fields]:
        return f"its step reads {unknown[0]}, which the kernel adds to a term"
    active = cell.active_sites(request.norm)
    if passed := [site for site in active if site in graph.passed]:
        return unlike_a_site(passed[0])
    if {*active} != {*cell_of(graph).active_sites(request.norm)}:
        return f"its sites are not those of its step, {', '.join(cell_of(graph).sites)}"
    asked = {"input", *graph.sites}
    for site in active:
        if site not in asked:
            return f"its step does not ask for the site {site!r}, which is normalised"
        if cell.blocks(site, 1) != cell_of(graph).blocks(site, 1):
            return f"its blocks at the site {site!r} are not the gates of a term"
    if graph.second and request.synchronized:
        return "it has two recurrent products, whose statistics are not merged across processes"
    if len(graph.states) < 2 and (found := [site for site in active if site in CELL_SITES]):
        return f"it has no state beside h for the site {found[0]!r}"
    for place in ("hidden", "candidate"):
        if place in request.masked and place not in asked:
            return f"its step does not ask for {place!r}, which recurrent dropout masks"
    for index, state in enumerate(("h", "c")):
        if f"zoneout_{state}" in request.masked and cell.states[index : index + 1] != (state,):
            return (
                f"its state {state} has zoneout, but is not its {('first', 'second')[index]} state"
            )
    return ""


def _known_to_refuse(graph: Graph, request: Request, frame: Frame) -> str:
    """Say why earlier calls refused a cell, empty if none did."""
    known = _known.get(id(request.cell))
    if known is None:
        return ""
    if known.changes:
        return _CHANGES
    compared = known.compared.get((graph.key, id(request.norm)), ("", None))[0]
    return compared or frame.compiled(graph, request) or ""


def _behaviour_refused(known: _Known, graph: Graph, key: str, norm: Norm | None) -> str:
    """Say how ``step`` behaves unlike its trace, empty if it does not.

    The trace is repeated where it is new, and is compared with ``step`` on random numbers.
    """
    cell = known.cell
    if key not in known.keys and not known.changes:
        before = _outside(cell)
        # the step may depend on a random number, for example
        differs = trace(cell).key != key or _outside(cell) != before
        # not before, as the trace may raise
        known.keys.add(key)
        known.changes = differs or len(known.keys) > _MOST
    if known.changes:
        return _CHANGES
    pair = key, id(norm)
    if pair not in known.compared:
        known.compared[pair] = _difference(cell, graph, norm), norm
    return known.compared[pair][0]


def _difference(cell: Cell, graph: Graph, norm: Norm | None) -> str:
    """Say how a step differs from its graph, empty if it does not."""
    units = 16 * cell.heads
    try:
        if trace(cell, units, cell.weights(1, units, False)).key != graph.key:
            return "its equations are others without biases"
        return difference(cell, cell_of(graph), norm)
    except TraceError as error:
        return str(error)


def _outside(cell: Cell) -> tuple[object, ...]:
    """Return what a step may change beside its results: random generators, and the cell."""
    try:
        fields = pickle.dumps(vars(cell))
    except Exception:
        # a field may be a function, for example
        fields = b""
    return random.getstate(), torch.get_rng_state().tolist(), fields


def cell_of(graph: Graph) -> GraphCell:
    """Return the graph as a cell, and make it known to the kernel's two passes."""
    key = graph.key
    if key not in _cells:
        vectors = tuple(graph.weights)
        name = OWN + hashlib.sha256(key.encode()).hexdigest()[:32]
        last = len(PEEPHOLES) - 1
        names = tuple([PEEPHOLES[min(k, last)] for k in range(len(vectors))])
        cell = GraphCell(name, graph, vectors, names)
        make_known(name, cell)
        _cells[key] = cell
    return _cells[key]


@constant
def built_in(cell: Cell) -> bool:
    """Tell whether the package's own build computes a cell."""
    return listed(cell, BUILT_IN)


@constant
def graph_of(cell: Cell) -> GraphCell:
    """Return the graph, as a cell, for which the kernel was chosen for a user's cell."""
    chosen = _chosen.graph if _chosen.cell is cell else None
    return cell_of(trace(cell)) if chosen is None else chosen


def as_graph_call(call: LayerCall) -> LayerCall:
    """Return the call of a user's cell as one of its graph, with the kernel's weights and sites."""
    cell = graph_of(call.cell)
    return with_products_joined(cell, graph_call(cell, call))


def moments_by_site(cell: Cell, taken: dict[str, Moments]) -> dict[str, Moments]:
    """Return the moments that the kernel took of the cell that it ran, by the cell's own sites."""
    if isinstance(cell, GraphCell) and cell.graph.second:
        return split_moments(cell.graph, taken)
    return taken
