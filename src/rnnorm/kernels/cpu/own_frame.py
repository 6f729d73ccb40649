"""The CPU kernel's frame for users' cells, whose equations a compiler of C++ compiles."""

from __future__ import annotations

import logging

import torch

from rnnorm.kernels.call import Request
from rnnorm.kernels.cpu import compiler, library
from rnnorm.kernels.cpu.compiler import unavailable as unavailable
from rnnorm.kernels.cpu.generate import header
from rnnorm.kernels.equations.graph import Graph
from rnnorm.kernels.equations.graph_cell import GraphCell
from rnnorm.kernels.run_time_compilation import switched_off

# by dtype, the name of a layer's numbers for the compiler, and their number in the struct
_TYPES = {torch.float64: ("double", 1)}
_FLOAT, _BFLOAT16 = ("float", 0), ("bfloat16", 2)
_log = logging.getLogger("rnnorm")
# by a graph's key and the number of a type, why it was not compiled, empty if it was
_compiled: dict[tuple[str, int], str] = {}


def _type_of(request: Request) -> tuple[str, int]:
    """Return the name for the compiler, and the number in the struct, of a layer's numbers."""
    # autocast narrows the input before the kernel gets it
    dtype = request.dtype
    if dtype != torch.float64 and torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
    if dtype == torch.bfloat16 and library.multiplies_bfloat16():
        return _BFLOAT16 if library.in_whole_factors(request.head_size) else _FLOAT
    return _TYPES.get(dtype, _FLOAT)


def refuses_all(request: Request) -> str:
    """Say why the frame runs no user's cell for a request, empty if it may run some."""
    return switched_off() or ("exported programs may run elsewhere" if request.exported else "")


def check(graph: Graph) -> None:
    """Check that the frame has room for equations.

    Raises:
        TraceError: if it has none.
    """
    header(graph)


def compiled(graph: Graph, request: Request) -> str | None:
    """Say why equations were not compiled, empty if they were, None if nobody has tried."""
    return _compiled.get((graph.key, _type_of(request)[1]))


def compile(cell: GraphCell, request: Request) -> str:
    """Compile and load equations, unless they are; say why they cannot be, empty if they can."""
    name, number = _type_of(request)
    at = cell.graph.key, number
    if at not in _compiled:
        what = f"the cell {request.cell.name} ({name})"
        try:
            text = header(cell.graph)
            for attempt in range(3):
                path = compiler.compile(text, name, what)
                try:
                    library.load_own(cell.option, number, path)
                    break
                except OSError:
                    # the cache was emptied in between
                    if path.exists() or attempt == 2:
                        raise
        except (compiler.CompilationError, OSError) as error:
            if library.forked():
                return str(error)
            _compiled[at] = str(error)
            _log.warning("%s is not compiled and runs on the reference: %s", what, error)
        else:
            _compiled[at] = ""
    return _compiled[at]
