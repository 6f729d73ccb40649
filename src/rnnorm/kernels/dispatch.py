"""The table of kernels, tried from the top, and the choice of the kernel that runs a layer."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd import forward_ad

from rnnorm.cells.cell import Cell
from rnnorm.cells.gru import GRU
from rnnorm.cells.lstm import LSTM
from rnnorm.cells.rnn import RNN
from rnnorm.kernels import own_cell, reference, replayed_reference, scan, synchronized
from rnnorm.kernels.call import LayerCall, LayerResult, Request, listed, remembered
from rnnorm.kernels.cpu import layer as cpu
from rnnorm.kernels.cpu import library as cpu_library
from rnnorm.kernels.cpu import update as cpu_update
from rnnorm.kernels.cuda import layer as cuda
from rnnorm.kernels.triton import layer as triton
from rnnorm.norm.moments import Moments
from rnnorm.norm.population import Population, look_up
from rnnorm.norm.update import update
from rnnorm.tracing import constant, exporting, mapped, transformed, unobserved

_TORCH = (LSTM(), GRU(), RNN(), RNN("relu"))


@dataclass(frozen=True)
class Kernel:
    """A row of the table of kernels.

    Args:
        name: name of the kernel for ``use_backend``.
        unavailable: why the kernel cannot run on this machine, empty if it can.
        refuses: says why the kernel does not cover a request, empty if it does.
        layer: runs one layer, as ``reference.layer`` does; None for torch's own operators, which
            run a whole stack of layers.
        traceable: whether a compiler captures the kernel without unrolling the time steps.
        synchronized: runs a call whose statistics are over the rows of several processes; None
            if the kernel cannot.
        unasked: says why only ``use_backend`` runs the kernel for a request that the kernel does
            not refuse, empty if it runs by itself.
        unproven: why only ``use_backend`` runs the kernel, whatever the request; empty if that
            depends on the request. Such a kernel is not asked what it refuses.
        look_up: looks up the statistics of a layer's populations, by site, from a step on.
        update: updates the populations by the statistics that the layer took, as
            ``norm.update.update`` does.
        restarts: whether ``layer`` takes resets; where it does not, the layer gives each piece
            between resets a row of its own.
    """

    name: str
    unavailable: str
    refuses: Callable[[Request], str]
    layer: Callable[[LayerCall], LayerResult] | None
    traceable: bool
    synchronized: Callable[[LayerCall], LayerResult] | None = None
    unasked: Callable[[Request], str] = lambda request: ""
    unproven: str = ""
    look_up: Callable[[Mapping[str, Population], int | Tensor, int], dict[str, Moments]] = look_up
    update: Callable[..., None] = update
    restarts: bool = False


def _aten_refuses(request: Request) -> str:
    """Say why torch's own operators do not compute a request, empty if they do."""
    if not listed(request.cell, _TORCH):
        return f"torch.nn has no {request.cell}"
    if request.cell.active_sites(request.norm):
        return "torch.nn has no normalised recurrence"
    if request.masked:
        return "torch.nn has no recurrent dropout"
    if request.states:
        return "torch.nn returns the last states alone"
    return ""


def _aten_unasked(request: Request) -> str:
    """Say why a later kernel is better than torch's own operators, empty if none is."""
    if request.exported and not (scan.UNAVAILABLE or scan.refuses(request)):
        return "torch.export would keep its example's number of steps"
    if mapped() or forward_ad._current_level >= 0:
        return "not all of torch's recurrent operators have rules for vmap and forward mode"
    if request.padded and transformed():
        return "torch does not pack within torch.func"
    if cpu_library.UNAVAILABLE or cpu.refuses(request):
        return ""
    # torch.nn is as fast on rows of one length, in an LSTM alone
    if request.padded and not (request.even and isinstance(request.cell, LSTM)):
        return "torch.nn runs sequences of different lengths slower"
    # torch.compile takes torch.nn's cells, but none of its loops over time
    if request.compiled and not (request.one_step or request.exported):
        return "torch.compile would break its graph"
    return ""


KERNELS = (
    Kernel("aten", "", _aten_refuses, None, traceable=False, unasked=_aten_unasked),
    Kernel(
        "cpu",
        cpu_library.UNAVAILABLE,
        cpu.refuses,
        cpu.layer,
        traceable=True,
        synchronized=cpu.layer,
        update=cpu_update.update,
        restarts=True,
    ),
    Kernel(
        "triton",
        triton.UNAVAILABLE,
        triton.refuses,
        triton.layer,
        traceable=True,
        unasked=triton.unasked,
        look_up=triton.look_up,
    ),
    Kernel(
        "cuda",
        triton.UNAVAILABLE,
        cuda.refuses,
        cuda.layer,
        traceable=True,
        unproven=cuda.UNPROVEN,
        look_up=triton.look_up,
        # the row of triton has none: no GPU has run this launch yet
        update=triton.update,
        restarts=True,
    ),
    Kernel(
        "cuda-graph",
        replayed_reference.UNAVAILABLE,
        replayed_reference.refuses,
        replayed_reference.layer,
        traceable=False,
        unproven=replayed_reference.UNPROVEN,
        restarts=True,
    ),
    Kernel("scan", scan.UNAVAILABLE, scan.refuses, scan.layer, traceable=True, restarts=True),
    Kernel(
        "reference",
        "",
        lambda request: "",
        reference.layer,
        traceable=False,
        synchronized=synchronized.layer,
        restarts=True,
    ),
)

#: how many layer calls each kernel has run (a whole stack counts once)
calls: Counter[str] = Counter()

_forced: ContextVar[str | None] = ContextVar("rnnorm_backend", default=None)
_logged: set[str] = set()
_log = logging.getLogger("rnnorm")


def backends() -> dict[str, str]:
    """Return why each kernel does not run here, in the order in which kernels are tried.

    Returns:
        the reason by name, empty for a kernel that is available. An available kernel may still
        not cover a given cell, norm, device or dtype, or may run on a device only where
        ``use_backend`` names it: the next kernel then runs, and the logger ``rnnorm`` says so
        once, at level INFO.
    """
    return {kernel.name: kernel.unavailable for kernel in KERNELS}


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Force one kernel within a ``with`` block, in the thread that enters it.

    Args:
        name: one of ``backends()``.

    Raises:
        ValueError: if no kernel has that name.
        RuntimeError: if the kernel cannot run on this machine, or (when a layer is called) does
            not cover the layer.
    """
    names = [kernel.name for kernel in KERNELS]
    if name not in names:
        raise ValueError(f"backend must be one of {', '.join(names)}, got {name!r}")
    if unavailable := _kernel(name).unavailable:
        raise RuntimeError(f"backend {name!r} is not available: {unavailable}")
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)


def why_not(name: str, request: Request) -> str:
    """Say why a kernel does not run a layer that ``use_backend`` forces on it, empty if it does."""
    kernel = _kernel(name)
    return kernel.unavailable or kernel.refuses(request)


def _kernel(name: str) -> Kernel:
    """Return the kernel of a name."""
    return next(kernel for kernel in KERNELS if kernel.name == name)


def forced() -> bool:
    """Tell whether ``use_backend`` forces a kernel."""
    return _forced.get() is not None


def choose(**asked: Any) -> Kernel:
    """Return the kernel that runs a layer, and count the call; a compiled layer is counted once.

    Args:
        **asked: the fields of ``Request`` except ``exported``.

    Raises:
        RuntimeError: if a forced kernel does not cover the request.
    """
    return KERNELS[_choose(**asked)]


@constant
def _choose(**asked: Any) -> int:
    """Return the index of the kernel that runs a layer, and count the call."""
    request, forced = Request(**asked, exported=exporting()), _forced.get()
    if forced is not None:
        index = KERNELS.index(_forced_kernel(forced, request))
    elif request.device.type != "cpu" or not settled(request.cell) or not unobserved(()):
        index = _first_accepting(*request)
    else:
        index = _remembered(*request)
    calls[KERNELS[index].name] += 1
    return index


def settled(cell: Cell) -> bool:
    """Tell whether equal requests always get the same kernel, and none of them is logged.

    Under ``use_backend`` they need not, and a user's cell may change its equations.
    """
    return quiet() and own_cell.built_in(cell)


def quiet() -> bool:
    """Tell whether no kernel is forced, and no choice of a kernel is logged."""
    return _forced.get() is None and not _log.isEnabledFor(logging.INFO)


def kernel_of(request: Request) -> Kernel:
    """Return the kernel that runs a request on the CPU where that is ``settled``."""
    return KERNELS[_remembered(*request)]


def _forced_kernel(name: str, request: Request) -> Kernel:
    """Return a kernel that ``use_backend`` forces.

    Raises:
        RuntimeError: if the kernel does not cover the request.
    """
    if why := why_not(name, request):
        raise RuntimeError(f"backend {name!r} does not cover {request}: {why}")
    return _kernel(name)


def _first_accepting(*fields: Any) -> int:
    """Return the index of the first kernel that accepts a request; the reference accepts all."""
    request = Request(*fields)
    index, passed_over = _try(request, reasons=_log.isEnabledFor(logging.INFO))
    if _log.isEnabledFor(logging.INFO) and (text := str(request)) not in _logged:
        # remembered as text, since a user's cell may not be hashable
        _logged.add(text)
        reasons = "; ".join([f"{name}: {why}" for name, why in passed_over.items()])
        _log.info("%s runs on %s (%s)", text, KERNELS[index].name, reasons or "first")
    return index


def _try(request: Request, *, reasons: bool) -> tuple[int, dict[str, str]]:
    """Return the index of the first kernel that accepts a request, and why earlier ones do not.

    Without ``reasons`` an unproven kernel is not asked, as it may trace a cell's step.
    """
    passed_over: dict[str, str] = {}
    for index, kernel in enumerate(KERNELS):  # noqa: B007
        if kernel.unproven and not reasons:
            continue
        why = kernel.unavailable or kernel.refuses(request) or kernel.unasked(request)
        why = why or kernel.unproven
        if not why:
            break
        passed_over[kernel.name] = why
    return index, passed_over


def explain(**asked: Any) -> tuple[str, dict[str, str]]:
    """Return the name of the kernel that ``choose`` returns, and why those before it do not run.

    Nothing is counted, logged or compiled.

    Raises:
        RuntimeError: as ``choose``.
    """
    request = Request(**asked, exported=exporting())
    with own_cell.without_compiling():
        if (forced := _forced.get()) is not None:
            return _forced_kernel(forced, request).name, {}
        index, passed_over = _try(request, reasons=True)
    return KERNELS[index].name, passed_over


_remembered = remembered(_first_accepting)
