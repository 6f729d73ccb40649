"""Record the processor, threads, kernels and commit of a training, and flush subnormals."""

from __future__ import annotations

import functools
import platform
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

import rnnorm
from rnnorm.kernels import dispatch


class Places(Callback):
    """Keeps in the checkpoint where each part of a training ran, without duplicates."""

    def __init__(self) -> None:
        self._before: list[dict[str, str]] = []
        self._here: dict[str, str] = {}
        self._calls: Counter[str] = Counter()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the processor, threads and commit of the part that starts."""
        self._calls = Counter(dispatch.calls)
        self._here = {
            "processor": processor(),
            "threads": str(torch.get_num_threads()),
            "commit": _commit(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return all places so far, each with the kernels that ran a layer there."""
        kernels = ", ".join(sorted(Counter(dispatch.calls) - self._calls))
        here = [{**self._here, "kernels": kernels}] if kernels else []
        return {"places": [*self._before, *(p for p in here if p not in self._before)]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the places of a checkpoint."""
        self._before = state_dict["places"]


def processor() -> str:
    """Return the processor's name, with family and model if the name has no number."""
    # linux leaves platform.processor() empty
    first = _CPUINFO.read_text().partition("\n\n")[0] if _CPUINFO.exists() else ""
    told = dict(re.findall(r"^(.+?)\s*: (.+)$", first, re.MULTILINE))
    name = told.get("model name") or platform.processor() or platform.machine()
    # a virtual machine may say no more than "AMD EPYC"
    if {"cpu family", "model"} <= told.keys() and not re.search(r"\d", name):
        return f"{name} (family {told['cpu family']}, model {told['model']})"
    return name


@functools.cache
def _commit() -> str:
    """Return the commit of the running source, ``-dirty`` if changed, or "" if installed."""
    file = Path(rnnorm.__file__)
    git = ["git", "-C", str(file.parent)]
    try:
        # a package installed inside another repository is not tracked there
        subprocess.run([*git, "ls-files", "--error-unmatch", file.name], **_SILENT)
        described = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--exclude=*"], **_SILENT
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return str(described.stdout).strip()


_SILENT: dict[str, Any] = {"check": True, "capture_output": True, "text": True, "timeout": 30}
_CPUINFO = Path("/proc/cpuinfo")


def flush_subnormals() -> None:
    """Let torch's own kernels treat subnormal numbers as zeros, as the fused kernels do.

    Vanishing gradients are subnormal, and some processors need a hundred cycles for each number.
    Threads of torch inherit the mode when they start: call this before torch computes anything.
    Where the processor has no such mode, nothing changes.
    """
    torch.set_flush_denormal(True)
