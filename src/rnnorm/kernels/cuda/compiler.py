"""Compilation of CUDA C++ by NVRTC, which torch's builds for GPUs bring, and a cache on disk."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from rnnorm.kernels.run_time_compilation import cache_folder, first_errors, write

# a change of a cached file's layout needs another number
_FORMAT = 1
_MAGIC = b"rnnorm cubin\n"
_DIGEST = hashlib.sha256().digest_size

_SUCCESS = 0

_log = logging.getLogger("rnnorm")


def compile(source: str, defines: Mapping[str, int | str], architecture: str) -> bytes:
    """Return the cubin of CUDA C++ source, from the cache on disk or else compiled.

    Args:
        source: a whole translation unit; it can include no header.
        defines: the value of each macro.
        architecture: architecture of the GPU, such as ``"sm_90"`` or ``"sm_90a"``.

    Raises:
        RuntimeError: if NVRTC is missing, does not know the architecture or rejects the source.
    """
    nvrtc, reason = _load()
    if nvrtc is None:
        raise RuntimeError(f"the CUDA kernels cannot be compiled: {reason}")
    values = {k: v if isinstance(v, str) else int(v) for k, v in sorted(defines.items())}
    options = [f"-D{name}={value}" for name, value in values.items()]
    options = ["-std=c++17", f"--gpu-architecture={architecture}", *options]
    described = json.dumps([_FORMAT, nvrtc.version, options, source])
    key = hashlib.sha256(described.encode()).hexdigest()
    cubin = _cached(key)
    if cubin is None:
        _check_architecture(nvrtc, architecture)
        cubin = nvrtc.compile(source, options)
        _store(key, cubin)
    return cubin


def unavailable() -> str:
    """Return why nothing can be compiled, empty if NVRTC was found."""
    return _load()[1]


class Nvrtc:
    """NVIDIA's compiler library, which needs neither a GPU nor its driver.

    Args:
        path: path of the library, or its name alone for the system's loader to find.

    Raises:
        OSError: if the library cannot be loaded.
    """

    def __init__(self, path: str) -> None:
        # NVRTC looks for its other library by name, not in its own folder
        builtins = Path(path).parent.glob("libnvrtc-builtins.so.*") if os.path.isabs(path) else ()
        self._builtins = [ctypes.CDLL(str(each)) for each in builtins]
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = f"{major.value}.{minor.value}"

    def architectures(self) -> list[int]:
        """Return the numbers of the architectures that NVRTC compiles for, such as 90."""
        count = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        numbers = (ctypes.c_int * count.value)()
        self._check(self._library.nvrtcGetSupportedArchs(numbers))
        return list(numbers)

    def compile(self, source: str, options: Sequence[str]) -> bytes:
        """Return the cubin of CUDA C++ source.

        Raises:
            RuntimeError: if NVRTC rejects the source or an option, with the head of its log.
        """
        program = ctypes.c_void_p()
        self._check(
            self._library.nvrtcCreateProgram(
                ctypes.byref(program), source.encode(), b"rnnorm.cu", 0, None, None
            )
        )
        try:
            texts = (ctypes.c_char_p * len(options))(*(each.encode() for each in options))
            code = self._library.nvrtcCompileProgram(program, len(options), texts)
            if code != _SUCCESS:
                raise RuntimeError(
                    f"NVRTC {self.version} cannot compile a kernel with {' '.join(options)} "
                    f"({self._name(code)}):\n{first_errors(self._output('ProgramLog', program))}"
                )
            return self._output("CUBIN", program)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _output(self, name: str, program: ctypes.c_void_p) -> bytes:
        """Return the log of a program, or its cubin."""
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{name}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{name}")(program, buffer))
        return buffer.raw

    def _check(self, code: int) -> None:
        if code != _SUCCESS:
            raise RuntimeError(f"NVRTC failed: {self._name(code)}")

    def _name(self, code: int) -> str:
        return str(self._library.nvrtcGetErrorString(code).decode())


def _check_architecture(nvrtc: Nvrtc, architecture: str) -> None:
    """Refuse an architecture that NVRTC is too old or too new for."""
    known = nvrtc.architectures()
    # sm_90a is sm_90 with what later GPUs lack
    if int("".join(filter(str.isdigit, architecture))) not in known:
        raise RuntimeError(
            f"NVRTC {nvrtc.version} does not compile for the GPU's architecture {architecture}, "
            f"only for {', '.join(f'sm_{number}' for number in known)}: install a PyTorch that is "
            "built for a CUDA which supports this GPU"
        )


@functools.cache
def _load() -> tuple[Nvrtc | None, str]:
    """Load NVRTC; return it, or None and the reason."""
    reasons = []
    for path in _candidates():
        try:
            return Nvrtc(path), ""
        except OSError as error:  # noqa: PERF203
            reasons.append(str(error))
    suffix = "-cu12" if (torch.version.cuda or "").startswith("12.") else ""
    return None, (
        f"NVRTC cannot be loaded ({'; '.join(reasons)}): pip install nvidia-cuda-nvrtc{suffix}"
    )


def _candidates() -> Iterator[str]:
    """Generate the paths and names that NVRTC may have, of the CUDA that torch is built for."""
    built_for = torch.version.cuda
    # a build of torch for the CPU can compile, though not launch
    majors = [built_for.partition(".")[0]] if built_for else ["13", "12"]
    wheels = importlib.util.find_spec("nvidia")
    packages = list(wheels.submodule_search_locations or ()) if wheels else []
    for major in majors:
        name = f"libnvrtc.so.{major}"
        folders = [Path(each, part) for each in packages for part in (f"cu{major}", "cuda_nvrtc")]
        paths = [folder / "lib" / name for folder in (*folders, Path(torch.__file__).parent)]
        yield from (str(path) for path in paths if path.exists())
        yield name
        installed = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "lib64", name)
        if installed.exists():
            yield str(installed)


def _digest(key: str, cubin: bytes) -> bytes:
    return hashlib.sha256(key.encode() + cubin).digest()


def _cached(key: str) -> bytes | None:
    """Return a cubin from the cache, None if the cache has no whole file for it."""
    try:
        data = (cache_folder("cuda") / f"{key}.cubin").read_bytes()
    except (OSError, RuntimeError):
        return None
    digest, cubin = data[len(_MAGIC) :][:_DIGEST], data[len(_MAGIC) + _DIGEST :]
    whole = data.startswith(_MAGIC) and digest == _digest(key, cubin)
    return cubin if whole else None


def _store(key: str, cubin: bytes) -> None:
    """Write a cubin to the cache, where other processes may read or write the same file."""
    try:
        write(cache_folder("cuda") / f"{key}.cubin", _MAGIC + _digest(key, cubin) + cubin)
    except (OSError, RuntimeError) as error:
        _log.info("a compiled CUDA kernel is not kept for the next process: %s", error)
