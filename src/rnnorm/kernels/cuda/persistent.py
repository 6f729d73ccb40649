"""Kernels in CUDA C++ that run many steps in one launch: their variants, layouts and launches."""

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

from rnnorm.kernels.inputs import Inputs, Options

#: environment variable: 0 leaves these kernels out
SWITCH = "RNNORM_PERSISTENT_KERNELS"
_log = logging.getLogger("rnnorm")
# warps of a block that compute
_WARPS = 16
#: most rows of a batch
MOST_ROWS = 128
# of sums over units
_MOST_BLOCKS = 160
# compute capability of the oldest GPUs that have the instructions
_OLDEST = (8, 0)
# architecture of the first GPUs that copy whole chunks
_BULK = 90
_SCOPES = {"off": "OFF", "own": "OWN", "given": "GIVEN"}
_HALVES = {torch.bfloat16: "BF16", torch.float16: "FP16"}
# of a copy from the second cache: bytes a nanosecond, as measured on an H200, the time until the
# first byte arrives, and the time that each chunk takes apart from its bytes
_BYTES_A_NS, _LATENCY_NS, _CHUNK_NS = 109, 900, 300


class RefusedError(RuntimeError):
    """A launch that the GPU refused."""


class Gpu(NamedTuple):
    """The properties of a GPU that a layout depends on.

    Args:
        multiprocessors: most blocks of a launch, which all run at once.
        shared: bytes of shared memory that a block may have.
        architecture: name of the architecture for the compiler.
    """

    multiprocessors: int
    shared: int
    architecture: str


class Layout(NamedTuple):
    """How the blocks of a launch share the work; ``layout.cuh`` explains the constants.

    Args:
        grid: number of blocks.
        units: units of a block.
        row_warps: warps that share the rows of a product.
        row_tiles: tiles of 16 rows of a warp.
        stages: chunks that are copied or multiplied at once.
        stride: rows of the numbers that blocks exchange.
        pieces: pieces of 16 bytes of a row.
        chunk: pieces of a chunk.
        shared: bytes of shared memory of a block.
        bulk: whether the GPU copies whole chunks.
    """

    grid: int
    units: int
    row_warps: int
    row_tiles: int
    stages: int
    stride: int
    pieces: int
    chunk: int
    shared: int
    bulk: bool

    @property
    def threads(self) -> int:
        """Return the number of threads of a block; one more warp copies chunks."""
        return 32 * (_WARPS + self.bulk)


class _Site(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_void_p) for name in ("gamma", "shift", "mean", "var")],
        *[(name, ctypes.c_int) for name in ("row", "skip", "pitch", "unused")],
    ]


class _Mask(ctypes.Structure):
    _fields_ = [
        ("drawn", ctypes.c_void_p),
        ("step", ctypes.c_longlong),
        ("row", ctypes.c_int),
        ("scale", ctypes.c_float),
    ]


class _Extra(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_void_p) for name in ("reset", "peephole_i", "peephole_f", "peephole_o")],
        *[(place, _Mask) for place in ("hidden", "candidate", "zone_h", "zone_c")],
        *[(name, ctypes.c_int) for name in ("rows", "unused")],
    ]


class _Exchange(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_void_p) for name in ("numbers", "partial", "state")],
        *[(name, ctypes.c_int) for name in ("stride", "pieces", "chunk", "unused")],
    ]


_LAST = [
    ("hidden", _Site),
    ("out", _Site),
    ("starts", ctypes.c_void_p),
    ("extra", _Extra),
    ("exchange", _Exchange),
    ("first", ctypes.c_int),
    ("stop", ctypes.c_int),
    ("units", ctypes.c_int),
]


class ForwardArguments(ctypes.Structure):
    """The struct of the same name in ``forward.cu``."""

    _fields_ = [
        *[
            (name, ctypes.c_void_p)
            for name in (
                *("x", "z", "before", "before_h", "c", "h", "fresh", "narrow", "seen", "weight"),
            )
        ],
        *_LAST,
        ("eps", ctypes.c_float),
    ]


class BackwardArguments(ctypes.Structure):
    """The struct of the same name in ``backward.cu``."""

    _fields_ = [
        *[
            (name, ctypes.c_void_p)
            for name in (
                *("x", "z", "before", "states", "output", "product", "carried", "last", "carry"),
                *("carried_h", "carry_h", "d_x", "d_z", "d_gamma", "d_shift", "d_gamma_out"),
                *("d_shift_out", "d_peephole", "weight"),
            )
        ],
        *_LAST,
        ("later", ctypes.c_int),
        ("eps", ctypes.c_float),
        ("unused", ctypes.c_int),
    ]


class Variant(NamedTuple):
    """A kernel as it is compiled: the cell and the norm. ``layout.cuh`` explains the constants."""

    backward: bool
    cell: str
    gates: int
    hidden: str
    out: str
    joint: bool
    shifted: bool
    precision: str
    wide_x: bool
    groups: int = 0
    centred: bool = True
    resets: bool = False
    peepholes: int = 0
    drops: bool = False

    def defines(self, layout: Layout) -> dict[str, int | str]:
        """Return the constants that the compiler is given."""
        return {
            "BACKWARD": int(self.backward),
            "CELL": self.cell,
            "HIDDEN": _SCOPES[self.hidden],
            "OUT": _SCOPES[self.out],
            "GROUPS": self.groups,
            "CENTRED": int(self.centred),
            "JOINT": int(self.joint),
            "SHIFTED": int(self.shifted),
            "RESETS": int(self.resets),
            "PEEPHOLES": self.peepholes,
            "DROPS": int(self.drops),
            "PRECISION": self.precision,
            "WIDE_X": int(self.wide_x),
            "BULK": int(layout.bulk),
            "UNITS": layout.units,
            "ROW_WARPS": layout.row_warps,
            "ROW_TILES": layout.row_tiles,
            "STAGES": layout.stages,
        }


def precision_of(dtype: torch.dtype, float32: str) -> str:
    """Return how numbers of a type are multiplied, empty if they cannot be.

    Args:
        dtype: type of the numbers.
        float32: precision that torch allows in products of float32, ``"tf32"`` or ``"ieee"``.
    """
    if dtype == torch.float32:
        return "TF32" if float32 == "tf32" else "FP32"
    return _HALVES.get(dtype, "")


@functools.lru_cache(maxsize=4096)
def lay_out(
    gpu: Gpu, *, backward: bool, gates: int, rows: int, units: int, half: bool, groups: int = 0
) -> Layout | None:
    """Choose a layout, None if the rows or weights do not fit into the multiprocessors.

    Args:
        gpu: the GPU.
        backward: whether the backward pass is launched.
        gates: gates of the cell.
        rows: rows of the batch.
        units: hidden units.
        half: whether a number of the product has 16 bits.
        groups: groups of gates that share statistics over units, 0 if statistics are over rows.
    """
    if not 0 < rows <= MOST_ROWS:
        return None
    most = min(gpu.multiprocessors, _MOST_BLOCKS) if groups else gpu.multiprocessors
    sizes = (8, 16) if backward or gates == 1 else (2, 4, 6, 8, 10, 12, 16)
    each = next((size for size in sizes if -(-units // size) <= most), None)
    if each is None:
        return None
    tiles = -(-rows // 16)
    row_warps = 1 << (tiles - 1).bit_length()
    split, stride, piece = _WARPS // row_warps, 16 * tiles, 8 if half else 4
    columns = each if backward else -(-gates * each // 8) * 8
    pitch = columns + 8 + (8 if columns % 16 == 8 else 0)
    floats = _WARPS * each * 2 * (gates + 1) + _WARPS + 4
    floats += 16 * row_warps * 2 * (groups + 1) if groups else 0
    fixed = -(-4 * floats // 128) * 128 + 128
    needed = -(-(gates * units if backward else units) // piece)
    bulk = int(gpu.architecture[3:]) >= _BULK
    best: tuple[float, Layout] | None = None
    for multiple in range(1, 17):
        chunk = 2 * split * multiple
        count = -(-needed // chunk)
        pieces = count * chunk
        for stages in range(2, 7):
            room = max(stages * chunk * stride, split * stride * pitch // 4) * 16
            shared = fixed + pieces * columns * 16 + room
            if shared > gpu.shared:
                continue
            copied = chunk * stride * 16 / _BYTES_A_NS
            # a chunk waits for its copy, which is one of several on their way, or for the threads
            time = copied + count * max(copied, _LATENCY_NS / (stages - 1), _CHUNK_NS)
            if best is None or time < best[0]:
                layout = Layout(
                    -(-units // each),
                    each,
                    row_warps,
                    1,
                    stages,
                    stride,
                    pieces,
                    chunk,
                    shared,
                    bulk,
                )
                best = time, layout
    return best and best[1]


@functools.cache
def source(backward: bool) -> str:
    """Return the whole source of a pass."""
    parts = ("device", "layout", "exchange", "sums", "equations")
    names = [*[f"{part}.cuh" for part in parts], "backward.cu" if backward else "forward.cu"]
    folder = resources.files("rnnorm.kernels.cuda")
    return "\n".join((folder / name).read_text() for name in names)


# by device, why the kernels were given up
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
        why = "it is a GPU of AMD's"
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
    text = source(variant.backward)
    cubin = compiler.compile(text, variant.defines(layout), gpu.architecture)
    function = launcher.load(cubin, name, device, layout.shared)
    if launcher.blocks_at_once(function, layout.threads, layout.shared) < layout.grid:
        raise RuntimeError(f"the GPU does not run {layout.grid} blocks at once")

    def launch(grid: int, shared: int, arguments: ctypes.Structure) -> None:
        launcher.launch(function, grid, layout.threads, shared, arguments)

    return launch


def ready(variant: Variant, layout: Layout, device: torch.device) -> Launch | None:
    """Return how to launch a variant, None if it does not run.

    Warns:
        RuntimeWarning: the first time that it does not run on a GPU; other kernels then run there.
    """
    try:
        return _loaded(variant, layout, device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        give_up(device, error)
        return None


def give_up(device: torch.device, error: Exception) -> None:
    """Leave the kernels out on a GPU from now on."""
    if device not in _broken:
        _broken[device] = str(error)
        warnings.warn(
            f"the kernels of many steps do not run on {device}, so that steps are launched one by "
            f"one, which is slower: {error}",
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
    extra: _Extra,
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
    exchange = _Exchange(
        room.data_ptr() + 128, partial.data_ptr(), room.data_ptr(),
        layout.stride, layout.pieces, layout.chunk, 0,
    )  # fmt: skip
    arguments = (BackwardArguments if variant.backward else ForwardArguments)(
        extra=extra,
        exchange=exchange,
        hidden=_site(*sites[0]),
        out=_site(*sites[1]),
        **{name: None if each is None else each.data_ptr() for name, each in tensors.items()},
        **numbers,
    )
    try:
        launch(layout.grid, layout.shared, arguments)
    except RuntimeError as error:
        raise RefusedError(str(error)) from error


def extra_of(inputs: Inputs, options: Options) -> _Extra:
    """Return where a call has its resets, peepholes and masks of recurrent dropout."""
    peepholes = [None if each is None else each.data_ptr() for each in inputs.peepholes]
    reset = None if inputs.reset is None else inputs.reset.data_ptr()
    masks = map(_mask, inputs.masks, options.scales)
    return _Extra(reset, *peepholes, *masks, inputs.x.size(1), 0)


def _mask(drawn: Tensor | None, scale: float) -> _Mask:
    if drawn is None:
        return _Mask(None, 0, 0, scale)
    steps, rows, units = drawn.shape
    # one number may serve all steps or rows
    row = units if rows > 1 else 0
    return _Mask(drawn.data_ptr(), rows * units if steps > 1 else 0, row, scale)


def _site(*values: Any) -> _Site:
    *tensors, row, skip, pitch = values
    return _Site(*[tensor.data_ptr() for tensor in tensors], row, skip, pitch, 0)
