"""Describe a benchmark's machine, and write its table and picture."""

from __future__ import annotations

import csv
import io
import os
import platform
import subprocess
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import rnnorm
from rnnorm.experiments.training.machine import processor
from rnnorm.experiments.writing import write_whole
from rnnorm.kernels.cpu.library import isa
from rnnorm.kernels.precision import float32_precision


def machine() -> Record:
    """Return the processor, instruction set, threads, malloc settings and versions.

    The instruction set is that of the CPU kernels, else torch's.
    """
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
    """Describe a machine in one line."""
    return ", ".join(f"{name} {value}" for name, value in record.items())


def device_and_system(device: torch.device) -> Record:
    """Return the system and triton's version; on CUDA also GPU, driver and torch's versions."""
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
            "float32": float32_precision(),
        }
    return about


def _driver() -> str:
    """Return the GPU driver's version, or ``unknown``."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, check=True, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return said.stdout.split("\n")[0].strip()


Record = dict[str, Any]


def write(
    records: Sequence[Record],
    folder: str | Path,
    name: str,
    *,
    row: Callable[[Record], str],
    series: Callable[[Record], str],
    title: str,
) -> list[Path]:
    """Write ``name.csv``, and ``name.png`` with the field ``ratio`` of every record.

    Args:
        records: the records, all with the same fields.
        folder: the folder, created if missing.
        name: name of both files, without suffix.
        row: returns the picture's row of a record.
        series: returns the legend's entry of a record.
        title: the meaning of the ratio.

    Returns:
        The paths of the table and the picture.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    table, picture = folder / f"{name}.csv", folder / f"{name}.png"
    text = io.StringIO()
    writer = csv.DictWriter(text, records[0])
    writer.writeheader()
    writer.writerows(records)
    write_whole(table, text.getvalue().encode())
    write_whole(picture, _drawn([(row(r), series(r), r["ratio"]) for r in records], title))
    return [table, picture]


def _drawn(points: Sequence[tuple[str, str, float]], title: str) -> bytes:
    """Draw points of (row, series, ratio) and return the picture as PNG."""
    from matplotlib.figure import Figure

    rows = list(dict.fromkeys(row for row, _, _ in points))
    figure = Figure(figsize=(9, 1.6 + 0.28 * len(rows)), layout="constrained", dpi=120)
    axes = figure.subplots()
    for name in dict.fromkeys(series for _, series, _ in points):
        own = [(ratio, rows.index(row)) for row, series, ratio in points if series == name]
        axes.plot(*zip(*own, strict=True), "o", markersize=6, alpha=0.8, label=name)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    # a dollar in a recipe's name must not begin a formula
    axes.set_xlabel(f"{title}; less is better", parse_math=False)
    axes.set_yticks(range(len(rows)), rows, parse_math=False)
    ratios = [ratio for _, _, ratio in points]
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if min(ratios) < 2 * t]
    ticks = [t for t in ticks if t < 2 * max(ratios)]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks], minor=False)
    axes.tick_params(axis="x", which="minor", labelbottom=False)
    axes.grid(axis="y", alpha=0.3)
    axes.invert_yaxis()
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    data = io.BytesIO()
    figure.savefig(data)
    return data.getvalue()
