"""Kernels in CUDA C++ that run many steps in one launch: their variants and launches."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import warnings
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnorm.kernels.call import UncoveredError
from rnnorm.kernels.cuda.arguments import (
    BackwardArguments,
    BlockExchange,
    Extra,
    ForwardArguments,
    site_of,
)
from rnnorm.kernels.cuda.equations import text_of
from rnnorm.kernels.cuda.layout import Gpu, Layout
from rnnorm.kernels.known_cells import OWN
from rnnorm.kernels.precision import float32_precision

#: environment variable: 0 leaves these kernels out
SWITCH = "RNNORM_PERSISTENT_KERNELS"
_log = logging.getLogger("rnnorm")
# compute capability of the oldest GPUs that have the instructions
_OLDEST = (8, 0)
_SCOPES = {"off": "OFF", "own": "OWN", "given": "GIVEN"}
_HALVES = {torch.bfloat16: "BF16", torch.float16: "FP16"}


class RefusedError(RuntimeError):
    """A launch that the GPU refused."""


class Variant(NamedTuple):
    """A kernel as it is compiled: the cell and the norm. ``layout.cuh`` explains the constants.

    ``cell`` is the name in ``Options``, and ``weights`` are the positions among ``PEEPHOLES`` of
    the weights by unit that the layer has.
    """

    backward: bool
    cell: str
    weights: tuple[int, ...]
    hidden: str
    out: str
    joint: bool
    shifted: bool
    precision: str
    wide_x: bool
    groups: int = 0
    centred: bool = True
    resets: bool = False
    drops: bool = False
    carry: bool = False

    def defines(self, layout: Layout) -> dict[str, int | str]:
        """Return the constants that the compiler is given."""
        return {
            "BACKWARD": int(self.backward),
            "HIDDEN": _SCOPES[self.hidden],
            "OUT": _SCOPES[self.out],
            "GROUPS": self.groups,
            "CENTRED": int(self.centred),
            "JOINT": int(self.joint),
            "CARRY": int(self.carry),
            "SHIFTED": int(self.shifted),
            "RESETS": int(self.resets),
            "DROPS": int(self.drops),
            "PRECISION": self.precision,
            "WIDE_X": int(self.wide_x),
            "BULK": int(layout.bulk),
            "UNITS": layout.units,
            "ROW_WARPS": layout.row_warps,
            "STAGES": layout.stages,
        }


def precision_of(dtype: torch.dtype) -> str:
    """Return how numbers of a type are multiplied, empty if they cannot be."""
    if dtype == torch.float32:
        return "TF32" if float32_precision() == "tf32" else "FP32"
    return _HALVES.get(dtype, "")


@functools.cache
def source(backward: bool, cell: str, weights: tuple[int, ...]) -> str:
    """Return the whole source of a pass, with the equations of a cell."""
    folder = resources.files("rnnorm.kernels.cuda")
    device, functions, *others = [
        (folder / name).read_text()
        for name in (
            *("device.cuh", "functions.cuh", "layout.cuh", "exchange.cuh", "sums.cuh"),
            "backward.cu" if backward else "forward.cu",
        )
    ]
    return "\n".join((device, functions, text_of(cell, weights), *others))


# why the kernels were given up, by device
_broken: dict[torch.device, str] = {}
#: how a variant is launched: grid, shared bytes and arguments
Launch = Callable[[int, int, ctypes.Structure], None]


def gpu_of(device: torch.device) -> Gpu | None:
    """Return the properties of a GPU that runs the kernels, None if it does not."""
    found = gpu_or_why(device)
    return found if isinstance(found, Gpu) else None


def gpu_or_why(device: torch.device) -> Gpu | str:
    """Return the properties of a GPU that runs the kernels, or say why it does not."""
    if device.type != "cuda":
        return "they run on a GPU"
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0 leaves them out"
    if device in _broken:
        return _broken[device]
    try:
        return _properties(device)
    except RuntimeError as error:
        give_up(device, error)
        return str(error)


@functools.cache
def _properties(device: torch.device) -> Gpu | str:
    """Return the properties of a GPU, or say why no kernel runs there.

    Raises:
        RuntimeError: if the driver cannot be loaded.
    """
    from rnnorm.kernels.cuda import compiler, launcher

    major, minor = torch.cuda.get_device_capability(device)
    why = compiler.unavailable()
    if torch.version.hip:
        why = "it is an AMD GPU"
    elif (major, minor) < _OLDEST:
        why = f"its compute capability is {major}.{minor}"
    if why:
        _log.info("the kernels of many steps do not run on %s: %s", device, why)
        return why
    found = torch.cuda.get_device_properties(device)
    shared = launcher.max_shared(device)
    return Gpu(found.multi_processor_count, shared, f"sm_{major}{minor}")


@functools.lru_cache(maxsize=1024)
def _loaded(variant: Variant, layout: Layout, device: torch.device) -> Launch:
    """Compile and load a variant on a GPU.

    Raises:
        RuntimeError: if it cannot be compiled or loaded, or has not the room that it needs.
    """
    from rnnorm.kernels.cuda import compiler, launcher

    gpu = _properties(device)
    assert isinstance(gpu, Gpu)
    name = "backward" if variant.backward else "forward"
    text = source(variant.backward, variant.cell, variant.weights)
    cubin = compiler.compile(text, variant.defines(layout), gpu.architecture)
    function = launcher.load(cubin, name, device, layout.shared)
    if launcher.blocks_at_once(function, layout.threads, layout.shared) < layout.grid:
        raise RuntimeError(f"the GPU does not run {layout.grid} blocks at once")

    def launch(grid: int, shared: int, arguments: ctypes.Structure) -> None:
        launcher.launch(function, grid, layout.threads, shared, arguments)

    return launch


def ready(variant: Variant, layout: Layout, device: torch.device) -> Launch | None:
    """Return how to launch a variant, None if it does not run.

    Raises:
        UncoveredError: if the equations of a user's cell cannot be compiled and loaded.

    Warns:
        RuntimeWarning: the first time that it does not run on a GPU; other kernels then run there.
    """
    try:
        return _loaded(variant, layout, device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if variant.cell.startswith(OWN):
            # other cells' equations may be compiled
            raise UncoveredError(f"the equations of a cell cannot be run: {error}") from error
        give_up(device, error)
        return None


def give_up(device: torch.device, error: Exception) -> None:
    """Leave the kernels out on a GPU from now on."""
    if device not in _broken:
        _broken[device] = str(error)
        warnings.warn(
            f"the kernels of many steps do not run on {device}, so steps are launched one by one, "
            f"which is slower: {error}",
            RuntimeWarning,
            stacklevel=2,
        )


def run(
    launch: Launch,
    variant: Variant,
    layout: Layout,
    tensors: Mapping[str, Tensor | None],
    numbers: Mapping[str, Any],
    sites: tuple[tuple[Any, ...], tuple[Any, ...]],
    extra: Extra,
) -> None:
    """Launch a variant on tensors.

    Args:
        launch: what ``ready`` returned.
        variant: the kernel.
        layout: its layout.
        tensors: tensors by name in the kernel's arguments.
        numbers: numbers by name in the kernel's arguments.
        sites: gamma, shift, mean, var, row, skip and pitch of the hidden and the cell site.
        extra: what ``extra_of`` returned.

    Raises:
        RefusedError: if the GPU refuses the launch.
    """
    device = next(tensor.device for tensor in tensors.values() if tensor is not None)
    # the counters and the numbers begin as zeros, parts of sums need not
    half = 2 * layout.pieces * layout.stride * 16
    groups = variant.groups
    parts = (groups + 1) * layout.stride * layout.grid * 8 if groups else 0
    room = torch.zeros(128 + half, dtype=torch.uint8, device=device)
    partial = torch.empty(parts, dtype=torch.uint8, device=device)
    exchange = BlockExchange(
        room.data_ptr() + 128, partial.data_ptr(), room.data_ptr(),
        layout.stride, layout.pieces, layout.chunk, 0,
    )  # fmt: skip
    arguments = (BackwardArguments if variant.backward else ForwardArguments)(
        extra=extra,
        exchange=exchange,
        hidden=site_of(*sites[0]),
        out=site_of(*sites[1]),
        **{name: None if each is None else each.data_ptr() for name, each in tensors.items()},
        **numbers,
    )
    try:
        launch(layout.grid, layout.shared, arguments)
    except RuntimeError as error:
        raise RefusedError(str(error)) from error
