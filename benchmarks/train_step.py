"""Time of our kernels as a ratio to torch.nn, verified first and measured interleaved.

    python benchmarks/train_step.py --out build/bench
    MALLOC_MMAP_THRESHOLD_=17179869184 MALLOC_TRIM_THRESHOLD_=17179869184 \
        MALLOC_TOP_PAD_=1073741824 python benchmarks/train_step.py --out build/bench-tuned

The second form keeps freed memory, so that neither side loses time to page faults.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

import rnnorm
from rnnorm.kernels.cpu.library import instruction_set


class Shape(NamedTuple):
    T: int
    B: int
    inputs: int
    H: int
    ragged: bool = False
    layers: int = 1
    bidirectional: bool = False


PAPERS = [
    Shape(784, 100, 1, 100),
    Shape(100, 100, 50, 1000),
    Shape(35, 20, 650, 650),
    Shape(100, 32, 40, 250),
    Shape(50, 64, 128, 512),
]
RAGGED = Shape(100, 64, 123, 250, ragged=True, layers=5, bidirectional=True)
SCALING = [
    *(Shape(T, 32, 64, 128) for T in (10, 30, 100, 300, 1000)),
    *(Shape(50, B, 64, 128) for B in (4, 12, 40, 120, 400)),
    *(Shape(50, 32, 64, H) for H in (16, 48, 160, 480, 1600)),
]
STREAMING = [Shape(1, 1, 256, 256), Shape(1, 16, 256, 256)]


class Row(NamedTuple):
    what: str
    cell: str
    shape: Shape
    norm: str | None
    train: bool
    backend: str | None = None


def rows(which: set[str]) -> list[Row]:
    found = []
    for shape in PAPERS:
        found.append(Row("train", "LSTM", shape, "batch", True))
        found.append(Row("plain", "LSTM", shape, None, True, "cpu"))
        found.append(Row("eval", "LSTM", shape, "batch", False))
        found.append(Row("gru", "GRU", shape, "batch", True))
        found.append(Row("rnn", "RNN", shape, "batch", True))
        found.append(Row("loop", "LSTM", shape, "batch", True, "reference"))
    found.append(Row("ragged", "LSTM", RAGGED, "batch", True))
    found += [Row("streaming", "LSTM", shape, "batch", False) for shape in STREAMING]
    found += [Row("scaling", "LSTM", shape, "batch", True) for shape in SCALING]
    return [row for row in found if row.what in which]


def prepare(row: Row) -> tuple[Callable[[], object], Callable[[], object]]:
    """Our step and torch.nn's, on the same data."""
    shape = row.shape
    sizes = (shape.inputs, shape.H, shape.layers)
    options = {"bidirectional": shape.bidirectional}
    torch.manual_seed(0)
    ours = getattr(rnnorm, row.cell)(*sizes, norm=row.norm, **options)
    rival = getattr(torch.nn, row.cell)(*sizes, **options)
    data = torch.randn(shape.T, shape.B, shape.inputs)
    if shape.ragged:
        lengths = torch.randint(20, shape.T + 1, (shape.B,))
        data = torch.nn.utils.rnn.pack_padded_sequence(data, lengths, enforce_sorted=False)
    verify(row, ours, data)

    def step(module: torch.nn.Module) -> None:
        if not row.train:
            with torch.no_grad():
                module(data)
            return
        output = module(data)[0]
        total = (output.data if shape.ragged else output).sum()
        torch.autograd.grad(total, list(module.parameters()))

    def run_ours() -> None:
        if row.backend:
            with rnnorm.use_backend(row.backend):
                step(ours)
        else:
            step(ours)

    ours.train(row.train)
    return run_ours, lambda: step(rival)


def verify(row: Row, module: torch.nn.Module, data: object) -> None:
    """Compares the first frames with the reference, and leaves statistics for evaluation."""
    ragged = row.shape.ragged
    first = data if ragged else data[: min(20, row.shape.T)]  # type: ignore[index]
    module.train(row.shape.B > 1)
    results = []
    for backend in (row.backend or ("cpu" if row.norm else "aten"), "reference"):
        with rnnorm.use_backend(backend):
            output = module(first)[0]
        results.append(output.data if ragged else output)
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)


def measure(
    ours: Callable[[], object], rival: Callable[[], object], seconds: float, clock: str
) -> tuple[float, float, float]:
    """Median seconds of each and the median ratio of neighbouring runs."""
    now = time.perf_counter if clock == "wall" else time.process_time
    times: list[tuple[float, float]] = []
    ours()
    rival()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or len(times) < 5:
        begin = now()
        ours()
        middle = now()
        rival()
        times.append((middle - begin, now() - middle))
    mine, theirs = zip(*times, strict=True)
    ratio = statistics.median(a / b for a, b in times)
    return statistics.median(mine), statistics.median(theirs), ratio


def draw(records: list[dict[str, object]], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    names = [f"{r['what']} {r['shape']}" for r in records]
    figure, axes = plt.subplots(figsize=(8, 1 + 0.3 * len(records)), layout="constrained")
    axes.barh(names, [float(str(r["ratio"])) for r in records])
    axes.axvline(1.0, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("time as a ratio to torch.nn, less is better")
    figure.savefig(path)


def main() -> None:
    known = ["train", "plain", "eval", "gru", "rnn", "loop", "ragged", "streaming", "scaling"]
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", nargs="*", default=[], help=f"of {', '.join(known)}; all if none")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=5.0, help="for each row")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--out", type=Path, help="folder for train_step.csv and train_step.png")
    args = parser.parse_args()
    if unknown := set(args.what) - set(known):
        parser.error(f"{', '.join(unknown)} must be of {', '.join(known)}")
    torch.set_num_threads(args.threads)
    malloc = " ".join(f"{k}={v}" for k, v in os.environ.items() if k.startswith("MALLOC_"))
    machine = {
        "processor": platform.processor() or platform.machine(),
        "isa": instruction_set(),
        "threads": args.threads,
        "clock": args.clock,
        "malloc": malloc or "default",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    print(machine)
    records: list[dict[str, object]] = []
    for row in rows(set(args.what or known)):
        mine, theirs, ratio = measure(*prepare(row), args.seconds, args.clock)
        shape = "x".join(map(str, row.shape[:4]))
        print(f"{row.what:10} {shape:18} {mine * 1e3:9.2f} ms  {theirs * 1e3:9.2f} ms  {ratio:.2f}")
        records.append(
            {"what": row.what, "shape": shape, "ours": mine, "torch.nn": theirs, "ratio": ratio}
            | machine
        )
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        with open(args.out / "train_step.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, records[0])
            writer.writeheader()
            writer.writerows(records)
        draw(records, args.out / "train_step.png")


if __name__ == "__main__":
    main()
