"""Time a training step on two threads that share units or rows, and model both on more cores.

    python benchmarks/threads.py
    python benchmarks/threads.py --shape 35x20x650x650

The kernels give each thread tiles of 16 units. Rows of a layer without batch norm are independent,
so each group of threads could have some of the rows, and the groups add up their gradients of the
weights. Two groups are timed as two calls on half of the rows, in two Python threads, whose results
are first compared with those of one call.

The model of R groups of U threads is

    time(R, U) = time of one thread with B / R rows * largest share of the units
               + barriers * cost(U) + time to add up R gradients / (R U)

with every time measured here on one thread, and the cost of a barrier on two. In a barrier the
threads take a counter in turn, so its cost is assumed to grow with their number, and to be FARTHER
times as high where threads have no cache in common. The model leaves out that every thread merges
the statistics of all rows by itself.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import rnnorm
from rnnorm.experiments.bench.layers import Shape, Step, read_shape, run_layer, verify
from rnnorm.experiments.bench.record import describe, machine
from rnnorm.kernels.cpu.c_struct import padded_units

SHAPES = [
    Shape(784, 100, 1, 100),
    Shape(32, 256, 64, 64),
    Shape(128, 1024, 32, 64),
    Shape(100, 32, 40, 250),
    Shape(50, 64, 128, 512),
]
CORES = (8, 16, 64)
NORMS = ("layer", None)
# barriers of a time step in both passes: layer norm adds one for the terms and one for c to each
BARRIERS = {"layer": 6, None: 2}
# as in csrc/tiling.h
TILE = 16
# fewer rows than this leave registers of the product unused
FEWEST_ROWS = 6
# threads with a third-level cache in common, and the assumed cost of crossing to another one
NEAR, FARTHER = 8, 3.0


class Split(NamedTuple):
    """How threads share a layer: groups of rows, and in each group the units."""

    groups: int
    team: int

    def __str__(self) -> str:
        return f"{self.groups}x{self.team}"


def barrier_seconds(seconds: float, count: int = 1000) -> float:
    """Return the shortest time of a barrier of two threads, measured for so many seconds."""
    source = Path(__file__).with_suffix(".cpp")
    csrc = source.parents[1] / "csrc"
    with tempfile.TemporaryDirectory() as folder:
        built = f"{folder}/threads.so"
        command = [os.environ.get("CXX", "c++"), "-std=c++17", "-O3", "-fopenmp", f"-I{csrc}"]
        command += ["-shared", "-fPIC", str(source), str(csrc / "team.cpp"), "-o", built]
        subprocess.run(command, check=True)
        barriers = ctypes.CDLL(built).barriers
    barriers.argtypes, barriers.restype = (ctypes.c_int64, ctypes.c_int64), None
    return shortest({"": partial(barriers, 2, count)}, seconds)[""] / count


def cost(team: int, of_two: float) -> float:
    """Return the assumed seconds of a barrier of a team of so many threads."""
    if team == 1:
        return 0.0
    return of_two * team / 2 * (FARTHER if team > NEAR else 1.0)


def largest_share(hidden_size: int, team: int) -> float:
    """Return the share of the units that the busiest thread has, as csrc/tiling.h cuts them."""
    padded = padded_units(hidden_size)
    tiles = -(-hidden_size // TILE)
    starts = [(padded * rank + team * TILE // 2) // (team * TILE) for rank in range(team)]
    ends = [*starts[1:], tiles]
    return max(min(TILE * b, padded) - TILE * a for a, b in zip(starts, ends, strict=True)) / padded


def splits(shape: Shape, cores: int) -> Iterator[Split]:
    """Yield the ways to share a layer among cores, the way of today first."""
    tiles = -(-shape.H // TILE)
    groups = 1
    while groups <= cores and (groups == 1 or shape.B // groups >= FEWEST_ROWS):
        yield Split(groups, min(cores // groups, tiles))
        groups *= 2


def one_call(layer: nn.RNNBase, x: Tensor, threads: int = 1) -> Step:
    """Return a training step that runs on so many threads, which share units."""

    def step() -> dict[str, Tensor]:
        torch.set_num_threads(threads)
        with rnnorm.use_backend("cpu"):
            return run_layer(layer, x, True)

    return step


class Halves:
    """A training step on two threads with half of the rows each.

    Attributes:
        busy: seconds of the thread that has taken longer in the last step, without those in which
            other processes had its core.
    """

    def __init__(self, layer: nn.RNNBase, x: Tensor) -> None:
        self.steps = [one_call(layer, half.contiguous()) for half in x.chunk(2, 1)]
        self.threads = ThreadPoolExecutor(2)
        self.busy = 0.0

    def __call__(self) -> dict[str, Tensor]:
        (one, took), (two, also) = self.threads.map(self.timed, self.steps)
        self.busy = max(took, also)
        output = torch.cat([one.pop("output"), two.pop("output")], 1)
        return {"output": output, **{name: one[name] + two[name] for name in one}}

    @staticmethod
    def timed(step: Step) -> tuple[dict[str, Tensor], float]:
        """Return what a step returns, and the seconds that its thread was busy."""
        begin = time.thread_time()
        return step(), time.thread_time() - begin


def shortest(steps: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Return the shortest time of each step, run in turn: other processes disturb longer ones."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, step in steps.items():
            begin = time.perf_counter()
            step()
            took = time.perf_counter() - begin
            times[name].append(step.busy if isinstance(step, Halves) else took)
    return {name: min(own) for name, own in times.items()}


def measure(shape: Shape, norm: str | None, seconds: float, barrier: float) -> None:
    """Measure one and two threads, and print what the model says of them and of more."""
    torch.manual_seed(0)
    x = torch.randn(shape[:3])
    layer = rnnorm.LSTM(shape.I, shape.H, norm=norm)
    weights = sum(parameter.numel() for parameter in layer.parameters())
    parts = sorted({split.groups for cores in (2, *CORES) for split in splits(shape, cores)})
    steps: dict[str, Step] = {"units": one_call(layer, x, 2), "rows": Halves(layer, x)}
    for groups in parts:
        steps[str(groups)] = one_call(layer, x[:, : -(-shape.B // groups)].contiguous())
    verify(f"{shape} in halves", steps["rows"], steps["1"])
    took = shortest(steps, seconds)
    grads = {str(groups): torch.randn(groups, weights) for groups in parts}
    added = shortest({name: partial(torch.sum, each, 0) for name, each in grads.items()}, 0.5)

    def model(split: Split) -> float:
        """Return the seconds of a training step as the model has them."""
        group = str(split.groups)
        apart = 0.0 if split.groups == 1 else added[group] / (split.groups * split.team)
        waits = shape.T * BARRIERS[norm] * cost(split.team, barrier)
        return took[group] * largest_share(shape.H, split.team) + waits + apart

    line = f"{shape!s:15} {norm or 'none':6} {1e3 * took['1']:8.2f} ms"
    for name, split in {"units": Split(1, 2), "rows": Split(2, 1)}.items():
        line += (
            f" | two by {name} {took['1'] / took[name]:.2f} (model {took['1'] / model(split):.2f})"
        )
    for cores in CORES:
        today, *others = splits(shape, cores)
        best = min([today, *others], key=model)
        line += f" | {cores}: {took['1'] / model(today):.1f}, {best} {took['1'] / model(best):.1f}"
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--shape", type=read_shape, action="append", help="TxBxIxH")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each shape and norm")
    args = parser.parse_args()
    print(describe(machine()))
    barrier = barrier_seconds(args.seconds)
    print(f"a barrier of two threads takes {1e9 * barrier:.0f} ns")
    print("how many times faster than one thread: two threads; so many cores as today, at best")
    for shape in args.shape or SHAPES:
        for norm in NORMS:
            measure(shape, norm, args.seconds, barrier)


if __name__ == "__main__":
    main()
