import contextlib
import ctypes
import functools
import itertools
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from rnnorm.kernels.cuda import launcher

GPU = torch.device("cuda", 1)


class Arguments(ctypes.Structure):
    _fields_ = (("out", ctypes.c_void_p), ("n", ctypes.c_int))


NAMES = {201: b"CUDA_ERROR_INVALID_CONTEXT", 720: b"CUDA_ERROR_TOO_LARGE"}
TEXTS = {201: b"invalid device context", 720: b"too many blocks"}


class Driver:
    """Stands for libcuda: converts arguments as ctypes would, and records the calls."""

    def __init__(self):
        self.calls, self.failing, self.context, self.launched = [], {}, 7, None
        self.handles = itertools.count(101)
        # each gives what the function writes to its output
        self.outputs = {
            "cuModuleLoadData": lambda image: next(self.handles),
            "cuModuleGetFunction": lambda module, name: next(self.handles),
            "cuCtxGetCurrent": lambda: self.context,
            "cuDeviceGet": lambda index: index + 10,
            "cuDevicePrimaryCtxRetain": lambda ordinal: 1000 + ordinal,
            "cuDeviceGetAttribute": lambda which, ordinal: {16: 132, 97: 232448}[which],
            "cuOccupancyMaxActiveBlocksPerMultiprocessor": lambda function, threads, shared: 2,
            "cuGetErrorName": NAMES.get,
            "cuGetErrorString": TEXTS.get,
        }

    def __getattr__(self, name):
        return functools.partial(self._call, name)

    def _call(self, name, *arguments):
        for kind, argument in zip(launcher._SIGNATURES[name], arguments, strict=True):
            kind.from_param(argument)
        outputs = [a._obj for a in arguments if hasattr(a, "_obj")]
        plain = [getattr(a, "value", a) for a in arguments if not hasattr(a, "_obj")]
        self.calls.append((name, *plain))
        if name in self.failing:
            return self.failing[name]
        for output in outputs:
            output.value = self.outputs[name](*plain)
        if name == "cuCtxSetCurrent":
            (self.context,) = plain
        if name == "cuLaunchCooperativeKernel":
            sent = ctypes.cast(plain[-1][0], ctypes.POINTER(Arguments)).contents
            self.launched = sent.out, sent.n
            return 0 if self.context else 201
        return 0

    def count(self, name):
        return [call[0] for call in self.calls].count(name)


@pytest.fixture(autouse=True)
def driver(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(launcher, "_cuda", lambda: driver)
    monkeypatch.setattr(launcher, "_modules", {})
    monkeypatch.setattr(launcher, "_functions", {})
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    stream = SimpleNamespace(cuda_stream=0xFFFF_0000_1234)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return driver


def test_a_kernel_is_loaded_once_on_each_gpu(driver):
    a = launcher.load(b"\x7fELF\0x", "a", GPU, 0)
    assert launcher.load(b"\x7fELF\0x", "a", GPU, 0) is a
    b = launcher.load(b"\x7fELF\0x", "b", GPU, 0)
    assert driver.count("cuModuleLoadData") == 1
    assert driver.count("cuModuleGetFunction") == 2
    other = launcher.load(b"\x7fELF\0x", "a", torch.device("cuda", 0), 0)
    assert driver.count("cuModuleLoadData") == 2
    assert len({a.handle, b.handle, other.handle}) == 3
    assert (a.name, a.device, other.device.index) == ("a", GPU, 0)


def test_threads_that_load_at_once_share_one_kernel(driver):
    driver.outputs["cuModuleLoadData"] = lambda cubin: time.sleep(0.05) or 1
    with ThreadPoolExecutor(2) as pool:
        a, b = pool.map(lambda name: launcher.load(b"x", name, GPU, 0), ["a", "a"])
    assert a is b
    assert driver.count("cuModuleLoadData") == 1


def test_shared_memory_only_grows(driver):
    for shared in (1000, 500, 2000):
        function = launcher.load(b"x", "a", GPU, shared)
    handle = function.handle
    granted = [call for call in driver.calls if call[0] == "cuFuncSetAttribute"]
    assert [call[1:] for call in granted] == [(handle, 8, 1000), (handle, 8, 2000)]


def test_launch_passes_the_struct_and_the_stream(driver):
    function = launcher.load(b"x", "a", GPU, 4096)
    launcher.launch(function, 132, 544, 4096, Arguments(0xABCD_0000_0000, 3))
    (name, *sent, _) = driver.calls[-1]
    assert name == "cuLaunchCooperativeKernel"
    assert sent == [function.handle, 132, 1, 1, 544, 1, 1, 4096, 0xFFFF_0000_1234]
    assert driver.launched == (0xABCD_0000_0000, 3)


def test_a_thread_without_a_context_gets_the_one_of_torch(driver):
    function = launcher.load(b"x", "a", GPU, 0)
    assert not driver.count("cuCtxSetCurrent")
    driver.context = None
    launcher.launch(function, 1, 32, 0, Arguments())
    assert driver.context == 1011
    assert driver.count("cuLaunchCooperativeKernel") == 2
    for ask in (
        lambda: launcher.load(b"y", "a", GPU, 0),
        lambda: launcher.blocks_at_once(function, 32, 0),
    ):
        driver.context = None
        ask()
        assert driver.context == 1011


def test_what_a_gpu_can_hold():
    function = launcher.load(b"x", "a", GPU, 0)
    assert launcher.blocks_at_once(function, 544, 100_000) == 2 * 132
    assert launcher.max_shared(GPU) == 232448


def test_a_refused_launch_names_the_kernel_and_the_error(driver):
    function = launcher.load(b"x", "lstm", GPU, 0)
    driver.failing["cuLaunchCooperativeKernel"] = 720
    with pytest.raises(
        RuntimeError,
        match=r"kernel lstm cannot .* 999 blocks of 544 .*: CUDA_ERROR_TOO_LARGE \(too many",
    ):
        launcher.launch(function, 999, 544, 0, Arguments())


def test_a_context_that_stays_invalid_is_an_error(driver):
    function = launcher.load(b"x", "a", GPU, 0)
    driver.failing["cuLaunchCooperativeKernel"] = 201
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_CONTEXT"):
        launcher.launch(function, 1, 32, 0, Arguments())
    assert driver.count("cuLaunchCooperativeKernel") == 2
    assert not driver.count("cuCtxSetCurrent")


@pytest.mark.parametrize(
    ("failing", "message"),
    [
        ("cuModuleLoadData", "cubin of CUDA kernel a cannot be loaded: CUDA error 99999"),
        ("cuModuleGetFunction", "no CUDA kernel a: CUDA error 99999"),
        ("cuFuncSetAttribute", "kernel a cannot have 64 bytes of shared memory: CUDA error"),
    ],
)
def test_a_kernel_that_cannot_be_loaded_is_tried_again(driver, failing, message):
    driver.failing[failing] = 99999
    with pytest.raises(RuntimeError, match=message):
        launcher.load(b"x", "a", GPU, 64)
    driver.failing.clear()
    assert launcher.load(b"x", "a", GPU, 64).shared == 64


def test_import_needs_no_driver():
    code = """
import ctypes, torch
loaded, whole = [], ctypes.CDLL
ctypes.CDLL = lambda path, *rest: loaded.append(path) or whole(path, *rest)
from rnnorm.kernels.cuda import compiler, launcher
assert not [path for path in loaded if "cuda" in path or "nvrtc" in path], loaded
def missing(path): raise OSError("no " + path)
ctypes.CDLL = missing
try:
    launcher.max_shared(torch.device("cuda", 0))
except RuntimeError as error:
    assert "driver cannot be loaded: no libcuda.so.1" in str(error)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)
