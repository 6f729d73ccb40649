"""The compiled library: loaded with ctypes, after torch so that both share one OpenMP pool."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rnnorm.kernels import cpu
from rnnorm.kernels.cpu.rank_exchange import Exchange

# in the order of the enumerations of csrc/layer.h
_GATED = ("LSTM", "GRU", "GRU_BOTH", "LiGRU")
CELLS = (*_GATED, "RNN_TANH", "RNN_RELU", "IndRNN_TANH", "IndRNN_RELU")
KINDS = ("off", "frame", "sequence", "row", "rms")
OVER = ("", "term", "gate")

_POINTER = ctypes.c_void_p
_INT = ctypes.c_int64
_EXCHANGE = ctypes.CFUNCTYPE(_INT, _INT, _INT, _INT)


def _pointers(names: str) -> list[tuple[str, type[_POINTER]]]:
    """Return pointer fields of a struct."""
    return [(name, _POINTER) for name in names.split()]


class CSite(ctypes.Structure):
    """``rnnorm_site`` of csrc/layer.h."""

    _fields_ = (
        ("scope", _INT),
        ("over", _INT),
        ("eps", ctypes.c_double),
        ("gamma", _POINTER),
        ("beta", _POINTER),
        ("constant_mean", _POINTER),
        ("constant_var", _POINTER),
        ("constant_last", _INT),
        ("constant_step", _INT),
        ("constant_row", _INT),
        ("mean", _POINTER),
        ("var", _POINTER),
        ("sums", _POINTER),
        ("grad_gamma", _POINTER),
        ("grad_beta", _POINTER),
    )


class CMask(ctypes.Structure):
    """``rnnorm_mask`` of csrc/layer.h."""

    _fields_ = (("drawn", _POINTER), ("step", _INT), ("row", _INT), ("scale", ctypes.c_double))


class CLayer(ctypes.Structure):
    """``rnnorm_layer`` of csrc/layer.h."""

    _fields_ = (
        ("cell", _INT),
        ("numbers", _INT),
        ("threads", _INT),
        ("T", _INT),
        ("B", _INT),
        ("I", _INT),
        ("H", _INT),
        ("R", _INT),
        ("heads", _INT),
        ("sizes", _POINTER),
        ("min_rows", _INT),
        ("all_sizes", _POINTER),
        ("exchange", _EXCHANGE),
        ("joint", _INT),
        ("carry", _INT),
        ("clears", _INT),
        ("recompute", _INT),
        ("narrow", _INT),
        ("site", CSite * 3),
        *_pointers("x h0 c0 reset weight_ih weight_hh weight_hr bias_ih bias_hh"),
        ("peephole", _POINTER * 3),
        ("mask", CMask * 4),
        *_pointers("output h_n c_n all_c saved_x saved_h saved_c saved_carried saved_made"),
        ("grad_projected", _POINTER),
        *_pointers("grad_output grad_h_n grad_c_n grad_all_c grad_x grad_h0 grad_c0"),
        *_pointers("grad_weight_ih grad_weight_hh grad_bias_ih grad_bias_hh"),
        ("grad_peephole", _POINTER * 3),
    )


class CPopulation(ctypes.Structure):
    """``rnnorm_population`` of csrc/layer.h."""

    _fields_ = (
        *_pointers("taken_mean taken_var mean var rows batches counts"),
        *[(name, _INT) for name in ("count", "steps", "features")],
        ("momentum", ctypes.c_double),
    )


def _load() -> tuple[ctypes.CDLL | None, str]:
    """Load the library; return it, or None and the reason.

    Raises:
        ImportError: if it was compiled from other sources than these.
    """
    # an editable install keeps the built library in another folder
    folders = [Path(folder) for folder in cpu.__path__]
    found = [path for folder in folders for path in folder.glob("librnnorm.*")]
    if not found:
        reasons = [path.read_text().strip() for f in folders for path in f.glob("not_built.txt")]
        return None, "it was not built: " + (reasons or ["install the package with pip"])[0]
    try:
        library = ctypes.CDLL(str(found[0]))
    except OSError as error:
        return None, f"it cannot be loaded: {error}"
    if not _fits(library):
        raise ImportError(
            f"{found[0]} was compiled for another version of rnnorm: install the package again "
            "(pip install --force-reinstall --no-deps rnnorm; in a checkout pip install -e .)"
        )
    library.rnnorm_isa.restype = ctypes.c_char_p
    library.rnnorm_has_bfloat16.restype = ctypes.c_int
    for function in (library.rnnorm_isa, library.rnnorm_has_bfloat16):
        function.argtypes = ()
    for name in ("rnnorm_forward", "rnnorm_backward"):
        function = getattr(library, name)
        function.restype = ctypes.c_int
        function.argtypes = (ctypes.POINTER(CLayer),)
    library.rnnorm_run.restype = ctypes.c_int
    library.rnnorm_run.argtypes = (_POINTER, ctypes.POINTER(CLayer))
    library.rnnorm_update.restype = None
    library.rnnorm_update.argtypes = (ctypes.c_void_p, _INT, _INT)
    if library.rnnorm_isa() is None:
        wanted = os.environ.get("RNNORM_CPU_ISA")
        return None, f"RNNORM_CPU_ISA={wanted} is not an instruction set of this machine"
    return library, ""


def _fits(library: ctypes.CDLL) -> bool:
    """Tell whether the library has the functions that are called, and the struct ``CLayer``."""
    size = getattr(library, "rnnorm_layer_size", None)
    newer = ("rnnorm_update", "rnnorm_has_bfloat16", "rnnorm_run")
    if size is None or not all([hasattr(library, name) for name in newer]):
        return False
    size.restype, size.argtypes = _INT, ()
    return bool(size() == ctypes.sizeof(CLayer))


_LIBRARY, UNAVAILABLE = _load()
#: path of the library, with which cells are linked that are compiled at run time
PATH = None if _LIBRARY is None else Path(_LIBRARY._name).absolute()
if UNAVAILABLE and os.environ.get("RNNORM_REQUIRE_CPU") == "1":
    raise ImportError(f"RNNORM_REQUIRE_CPU=1, but the CPU kernels are missing: {UNAVAILABLE}")

# GNU OpenMP hangs in a child if the parent has used its pool before the fork
_forked = False


def _after_fork() -> None:
    """Note in a forked process that OpenMP's threads must not be used."""
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def forked() -> bool:
    """Tell whether this process is the child of a fork that has loaded no other program."""
    return _forked


# names of the cells that were compiled at run time, and the addresses of their passes by number of
# the cell and type of numbers
_own_names: list[str] = []
_own_passes: dict[tuple[int, int], dict[str, int]] = {}


def number_of(cell: str) -> int:
    """Return the number of a cell in the struct, by its name in ``Options``."""
    return CELLS.index(cell) if cell in CELLS else len(CELLS) + _own_names.index(cell)


def load_own(cell: str, numbers: int, path: Path) -> None:
    """Load the passes of a cell that was compiled at run time.

    Args:
        cell: name of the cell in ``Options``.
        numbers: 0 for float, 1 for double, 2 for products of bfloat16.
        path: path of the library that has them.

    Raises:
        OSError: if the library cannot be loaded.
    """
    own = ctypes.CDLL(str(path))
    if cell not in _own_names:
        _own_names.append(cell)
    # a library that was loaded is never unloaded
    _own_passes[number_of(cell), numbers] = {
        f"rnnorm_{each}": ctypes.cast(getattr(own, f"rnnorm_own_{each}"), _POINTER).value or 0
        for each in ("forward", "backward")
    }


def isa() -> str:
    """Return the instruction set of the build that runs here, empty without the library."""
    return "" if _LIBRARY is None else _LIBRARY.rnnorm_isa().decode()


def multiplies_bfloat16() -> bool:
    """Tell whether the build that runs here multiplies in bfloat16."""
    return _LIBRARY is not None and bool(_LIBRARY.rnnorm_has_bfloat16())


def in_whole_factors(head_size: int) -> bool:
    """Tell whether products of bfloat16 may have heads of this size, 0 without heads.

    A product by AMX reads 32 units at once, which may not be those of two heads.
    """
    return head_size % 32 == 0


def own_multiplies_bfloat16(cell: str) -> bool:
    """Tell whether the passes that were loaded of a user's cell multiply in bfloat16."""
    return (number_of(cell), 2) in _own_passes


def run(name: str, layer: CLayer, exchange: Exchange | None = None) -> None:
    """Call ``rnnorm_forward`` or ``rnnorm_backward`` without holding the GIL.

    Args:
        name: name of the function.
        layer: argument of the function.
        exchange: merges statistics with other processes, if they are over the rows of all.

    Raises:
        MemoryError: if scratch memory could not be allocated.
        RuntimeError: if the cell was not compiled for the layer's numbers.
        BaseException: if ``exchange`` raised it.
    """
    assert _LIBRARY is not None
    threads = 1 if _forked else torch.get_num_threads()
    if threads > 1:
        # a thread owns 16 units, or 64 features of the input's gradient
        threads = min(threads, max(1, -(-layer.H // 16), -(-layer.I // 64)))
    layer.threads = threads
    raised: list[BaseException] = []
    if exchange is not None:
        layer.all_sizes = exchange.sizes.data_ptr()
        layer.exchange = _EXCHANGE(lambda *which: _attempt(exchange, which, raised))
    if layer.cell < len(CELLS):
        failed = getattr(_LIBRARY, name)(ctypes.byref(layer))
    elif passes := _own_passes.get((layer.cell, layer.numbers)):
        failed = _LIBRARY.rnnorm_run(passes[name], ctypes.byref(layer))
    else:
        raise RuntimeError("the cell was not compiled for numbers of this dtype: call its layer")
    if raised:
        raise raised.pop()
    if failed:
        raise MemoryError(f"{name}: no memory for the scratch space of the CPU kernel")


def update(sites: ctypes.Array[CPopulation], is_double: bool) -> None:
    """Call ``rnnorm_update`` without holding the GIL.

    Args:
        sites: the populations, and the statistics that they take in.
        is_double: whether all of these are float64, not float32.
    """
    assert _LIBRARY is not None
    _LIBRARY.rnnorm_update(ctypes.byref(sites), len(sites), is_double)


def _attempt(function: Callable[..., None], arguments: Any, raised: list[BaseException]) -> int:
    """Call a function from C, which cannot take an exception; return 1 if the function raised."""
    try:
        function(*arguments)
    except BaseException as error:
        raised.append(error)
        return 1
    return 0
