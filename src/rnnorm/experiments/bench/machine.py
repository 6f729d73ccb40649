"""What a benchmark says about the machine that it ran on."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata

import torch

import rnnorm
from rnnorm.experiments.bench.record import Record
from rnnorm.experiments.training.place import processor
from rnnorm.kernels.cpu.library import isa


def machine() -> Record:
    """Processor, instruction set (of the CPU kernels, else torch's), threads, malloc, versions."""
    settings = [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD")
    ]
    return {
        "processor": processor(),
        "isa": isa() or torch.backends.cpu.get_cpu_capability().lower(),
        "threads": torch.get_num_threads(),
        "malloc": " ".join(settings) or "default",
        "torch": torch.__version__,
        "rnnorm": rnnorm.__version__,
        "python": platform.python_version(),
    }


def describe(record: Record) -> str:
    """A machine in one line."""
    return ", ".join(f"{name} {value}" for name, value in record.items())


def device_and_system(device: torch.device) -> Record:
    """System and triton's version; the GPU, its driver, and torch's versions for it."""
    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = "not installed"
    about: Record = {"system": platform.platform(), "triton": triton}
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability()
        about |= {
            "gpu": f"{torch.cuda.get_device_name()} (sm_{major}{minor})",
            "driver": _driver(),
            "cuda": torch.version.cuda or torch.version.hip,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
            "matmul": torch.get_float32_matmul_precision(),
        }
    return about


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, check=True, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return said.stdout.split("\n")[0].strip()
