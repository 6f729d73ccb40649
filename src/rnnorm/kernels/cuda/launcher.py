"""Launches of compiled kernels by NVIDIA's driver, which is loaded when it is first needed."""

from __future__ import annotations

import ctypes
import functools
import threading

import torch

# constants of cuda.h
_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
_SHARED_OPTIN = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
_INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT

_POINTER = ctypes.c_void_p
_INT = ctypes.c_int
_UNSIGNED = ctypes.c_uint
_SIGNATURES = {
    "cuInit": (_UNSIGNED,),
    "cuGetErrorName": (_INT, _POINTER),
    "cuGetErrorString": (_INT, _POINTER),
    "cuDeviceGet": (_POINTER, _INT),
    "cuDeviceGetAttribute": (_POINTER, _INT, _INT),
    "cuDevicePrimaryCtxRetain": (_POINTER, _INT),
    "cuCtxGetCurrent": (_POINTER,),
    "cuCtxSetCurrent": (_POINTER,),
    "cuModuleLoadData": (_POINTER, ctypes.c_char_p),
    "cuModuleGetFunction": (_POINTER, _POINTER, ctypes.c_char_p),
    "cuFuncSetAttribute": (_POINTER, _INT, _INT),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (_POINTER, _POINTER, _INT, ctypes.c_size_t),
    "cuLaunchCooperativeKernel": (_POINTER, *[_UNSIGNED] * 7, _POINTER, _POINTER),
}
_Parameters = _POINTER * 1


class Function:
    """A kernel that is loaded on one GPU.

    Attributes:
        name: name of the kernel in its source.
        device: the GPU, with its index.
        handle: the driver's ``CUfunction``.
        shared: most bytes of dynamic shared memory that a launch may ask for.
    """

    __slots__ = ("device", "handle", "name", "shared")

    def __init__(self, name: str, device: torch.device, handle: int) -> None:
        self.name, self.device, self.handle, self.shared = name, device, handle, 0


_modules: dict[tuple[bytes, int], int] = {}
_functions: dict[tuple[bytes, int, str], Function] = {}
_lock = threading.Lock()


def load(cubin: bytes, name: str, device: torch.device, shared: int) -> Function:
    """Return a kernel of a cubin, loaded once on each GPU for as long as the process lives.

    A graph cannot capture the first load, only the launches that follow.

    Args:
        cubin: what ``compiler.compile`` returned for the GPU's architecture.
        name: name of an ``extern "C"`` kernel.
        device: the GPU, with its index.
        shared: bytes of dynamic shared memory for each block.

    Raises:
        RuntimeError: if the driver is missing, rejects the cubin, finds no kernel of that name,
            or cannot give the shared memory.
    """
    index = device.index
    with _lock, torch.cuda.device(device):
        function = _functions.get((cubin, index, name))
        _bind_context(device)
        if function is None:
            handle = _POINTER()
            module = _module(cubin, index, name)
            code = _cuda().cuModuleGetFunction(ctypes.byref(handle), module, name.encode())
            _check(code, f"the cubin has no CUDA kernel {name}")
            assert handle.value is not None
            function = _functions[cubin, index, name] = Function(name, device, handle.value)
        if shared > function.shared:
            code = _cuda().cuFuncSetAttribute(function.handle, _DYNAMIC_SHARED, shared)
            _check(code, f"CUDA kernel {name} cannot have {shared} bytes of shared memory")
            function.shared = shared
    return function


def launch(
    function: Function, grid: int, block: int, shared: int, arguments: ctypes.Structure
) -> None:
    """Launch a kernel on torch's current stream, with all its blocks on the GPU at once.

    The GPU must be torch's current device. A graph may capture the launch.

    Args:
        function: the kernel; its only parameter is a struct.
        grid: number of blocks.
        block: number of threads of each block.
        shared: bytes of dynamic shared memory of each block.
        arguments: the struct, which the driver copies before this function returns.

    Raises:
        RuntimeError: if the driver rejects the launch, as it does with more blocks than the GPU
            can hold at once. torch reports what fails later, within the kernel.
    """
    stream = torch.cuda.current_stream(function.device).cuda_stream
    parameters = _Parameters(ctypes.addressof(arguments))
    start = _cuda().cuLaunchCooperativeKernel
    code = start(function.handle, grid, 1, 1, block, 1, 1, shared, stream, parameters)
    if code == _INVALID_CONTEXT:
        _bind_context(function.device)
        code = start(function.handle, grid, 1, 1, block, 1, 1, shared, stream, parameters)
    if code:
        asked = f"{grid} blocks of {block} threads and {shared} bytes of shared memory"
        _check(code, f"CUDA kernel {function.name} cannot be launched with {asked}")


def max_shared(device: torch.device) -> int:
    """Return the most bytes of shared memory that one block of a GPU can have."""
    return _attribute(device, _SHARED_OPTIN)


def blocks_at_once(function: Function, threads: int, shared: int) -> int:
    """Return how many blocks of a kernel its GPU holds at once, the most that can be launched.

    Args:
        function: the kernel.
        threads: number of threads of each block.
        shared: bytes of dynamic shared memory of each block.

    Raises:
        RuntimeError: if the driver rejects the question.
    """
    count = _INT()
    with torch.cuda.device(function.device):
        _bind_context(function.device)
        code = _cuda().cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(count), function.handle, threads, shared
        )
    _check(code, f"the occupancy of CUDA kernel {function.name} is not known")
    return count.value * _attribute(function.device, _MULTIPROCESSORS)


@functools.cache
def _cuda() -> ctypes.CDLL:
    """Load the driver's library.

    Raises:
        RuntimeError: if there is none, or it cannot start.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise RuntimeError(f"NVIDIA's driver cannot be loaded: {error}") from error
    for name, types in _SIGNATURES.items():
        getattr(cuda, name).argtypes = types
    if code := cuda.cuInit(0):
        raise RuntimeError(f"NVIDIA's driver cannot start: {_described(cuda, code)}")
    return cuda


def _module(cubin: bytes, index: int, name: str) -> int:
    """Load a cubin, once, on the current device; the name of a kernel is for the error."""
    if (cubin, index) not in _modules:
        handle = _POINTER()
        code = _cuda().cuModuleLoadData(ctypes.byref(handle), cubin)
        _check(code, f"the cubin of CUDA kernel {name} cannot be loaded")
        assert handle.value is not None
        _modules[cubin, index] = handle.value
    return _modules[cubin, index]


def _bind_context(device: torch.device) -> None:
    """Give a thread that has no CUDA context the one of a GPU that torch uses, the primary one.

    torch need not have done so in a new thread, such as autograd's.
    """
    context = _POINTER()
    _check(_cuda().cuCtxGetCurrent(ctypes.byref(context)), "the CUDA context is not known")
    if context.value is None:
        code = _cuda().cuDevicePrimaryCtxRetain(ctypes.byref(context), _ordinal(device))
        _check(code, f"{device} has no CUDA context")
        _check(_cuda().cuCtxSetCurrent(context), f"the CUDA context of {device} cannot be used")


def _ordinal(device: torch.device) -> int:
    """Return the driver's ``CUdevice`` of a GPU."""
    ordinal = _INT()
    _check(_cuda().cuDeviceGet(ctypes.byref(ordinal), device.index), f"{device} is not a GPU")
    return ordinal.value


def _attribute(device: torch.device, which: int) -> int:
    value = _INT()
    code = _cuda().cuDeviceGetAttribute(ctypes.byref(value), which, _ordinal(device))
    _check(code, f"attribute {which} of {device} is not known")
    return value.value


def _check(code: int, what: str) -> None:
    """Raise the driver's error, unless the code is that of success."""
    if code:
        raise RuntimeError(f"{what}: {_described(_cuda(), code)}")


def _described(cuda: ctypes.CDLL, code: int) -> str:
    """Return the driver's name of an error, and its sentence."""
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    cuda.cuGetErrorName(code, ctypes.byref(name))
    cuda.cuGetErrorString(code, ctypes.byref(text))
    # an older driver may not know the code
    if name.value is None or text.value is None:
        return f"CUDA error {code}"
    return f"{name.value.decode()} ({text.value.decode()})"
