"""A training step where two processes share the cores, as a ratio to one process alone, verified.

    python benchmarks/shared_cores.py

Each process has as many threads as torch chooses, one a core. So a thread that waits for another at
a barrier may wait for one whose core the other process has.
"""

from __future__ import annotations

import argparse
from multiprocessing import get_context
from threading import Barrier

import torch

from rnnorm.experiments.bench.layers import Shape, Variant, prepare
from rnnorm.experiments.bench.record import describe, machine
from rnnorm.experiments.bench.timing import interleave

SHAPE = Shape(784, 50, 1, 100)
VARIANTS = {str(variant): variant for variant in (Variant("batch"), Variant("layer"))}


def run(name: str, threads: int, seconds: float, ready: Barrier) -> float:
    torch.set_num_threads(threads)
    variants = [VARIANTS[name]] if name in VARIANTS else []
    step = prepare("LSTM", SHAPE, variants, train=True)[name]
    ready.wait()
    return interleave({name: step}, seconds)[name].seconds


def slowest(processes: int, name: str, threads: int, seconds: float) -> float:
    """Median time of a step, of the slowest of several processes that run at once."""
    context = get_context("spawn")
    with context.Manager() as manager, context.Pool(processes) as pool:
        given = (name, threads, seconds, manager.Barrier(processes))
        return max(pool.starmap(run, [given] * processes, chunksize=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of each")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each row")
    args = parser.parse_args()
    print(describe(machine()))
    for name in ("torch.nn", *VARIANTS):
        alone, shared = (slowest(n, name, args.threads, args.seconds) for n in (1, 2))
        print(
            f"{SHAPE!s:15} {name:10} alone {1e3 * alone:8.1f} ms, of two {1e3 * shared:8.1f} ms: "
            f"{shared / alone:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
