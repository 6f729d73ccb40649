"""The kernels in CUDA C++ on the CPU, compiled with an emulation of the GPU's instructions."""

import ctypes
import functools
import hashlib
import os
import subprocess
from pathlib import Path

from rnnorm.kernels.cuda import layout, own_frame, persistent
from rnnorm.kernels.cuda.equations import text_of

HERE = Path(__file__).parent / "emulator"
SOURCES = Path(persistent.__file__).parent


def on_cpu(monkeypatch, folder, multiprocessors=132, architecture="sm_90"):
    """Let the CPU take the place of a GPU; libraries of the variants are kept in a folder."""
    gpu = layout.Gpu(multiprocessors, 232448, architecture)
    launched = []

    def ready(variant, layout, device):
        launched.append((variant, layout))
        return functools.partial(launch, library(variant, layout, Path(folder)), layout.threads)

    monkeypatch.setattr(persistent, "gpu_or_why", lambda device: gpu)
    monkeypatch.setattr(persistent, "ready", ready)
    # without NVRTC too
    monkeypatch.setattr(own_frame, "unavailable", lambda: "")
    return launched


def library(variant, layout, folder):
    """Compile a variant, or find it in the folder."""
    defines = [f"-D{name}={value}" for name, value in variant.defines(layout).items()]
    texts = [path.read_bytes() for each in (HERE, SOURCES) for path in sorted(each.glob("*.[ch]*"))]
    text = text_of(variant.cell, variant.weights)
    key = hashlib.sha256(b"".join([*texts, " ".join([*defines, text]).encode()])).hexdigest()[:16]
    path = folder / f"{key}.so"
    if not path.exists():
        part = folder / f"{key}.{os.getpid()}.so"
        header = part.with_suffix(".cuh")
        header.write_text(text)
        defines.append(f'-DEQUATIONS="{header}"')
        command = ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", "-Wno-unknown-pragmas"]
        folders = [f"-I{HERE}", f"-I{SOURCES}"]
        subprocess.run([*command, *folders, *defines, HERE / "kernel.cpp", "-o", part], check=True)
        part.rename(path)
    return ctypes.CDLL(str(path))


def launch(library, threads, grid, shared, arguments):
    """Run a kernel as ``launcher.launch`` does."""
    library.run(ctypes.byref(arguments), grid, threads, shared)
