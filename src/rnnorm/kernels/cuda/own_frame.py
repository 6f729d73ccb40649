"""The frame of the kernels in CUDA C++ for users' cells, whose equations NVRTC compiles."""

from __future__ import annotations

from rnnorm.cells.cell import Cell
from rnnorm.kernels.call import Request
from rnnorm.kernels.cuda.compiler import unavailable as unavailable
from rnnorm.kernels.cuda.equations import Equations
from rnnorm.kernels.cuda.passes import why_not_multiplied
from rnnorm.kernels.equations.graph import Graph
from rnnorm.kernels.equations.graph_cell import GraphCell
from rnnorm.kernels.equations.opaque import TraceError
from rnnorm.kernels.known_cells import rectified
from rnnorm.kernels.own_cell import cell_of
from rnnorm.kernels.run_time_compilation import switched_off


def refuses_all(request: Request) -> str:
    """Say why the frame runs no user's cell for a request, empty if it may run some."""
    return switched_off() or why_not_multiplied(request.dtype, rectified=False)


def check(graph: Graph) -> None:
    """Check that the frame has room for equations.

    Raises:
        TraceError: if it has none.
    """
    if graph.independent:
        raise TraceError("it has no recurrent matrix")
    Equations(graph, dict.fromkeys(graph.weights, 0))


def compiled(graph: Graph, request: Request) -> str | None:
    """Return None, as nothing is known before a launch, which compiles the variant it needs."""
    return None


def compile(cell: GraphCell, request: Request) -> str:
    """Say why a cell's equations cannot be launched, empty if they can; a launch compiles them."""
    return why_not_multiplied(request.dtype, rectified=rectified(cell))


def without_heads(cell: Cell) -> GraphCell:
    """Return the graph of a cell with heads as one of a cell whose units read all of h."""
    assert isinstance(cell, GraphCell)
    return cell_of(cell.graph._replace(heads=1))
