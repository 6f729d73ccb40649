"""What synchronised statistics cost: measured in processes of this machine, counted for others.

python benchmarks/synchronized.py            # milliseconds of a training step
python benchmarks/synchronized.py --count    # collectives, bytes and waiting, to 64 ranks
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from torch import distributed

import rnnorm

# steps, rows of the whole minibatch, units; the last is permuted MNIST's
CASES = ((50, 64, 100), (50, 256, 100), (50, 64, 500), (200, 64, 100), (784, 64, 100))


def step_time(T: int, B: int, H: int, rank: int, world: int, backend: str) -> float:
    """Median milliseconds of forward and backward of this rank's rows."""
    torch.manual_seed(0)
    lstm = rnnorm.LSTM(1 if T == 784 else H, H, norm=rnnorm.BatchNorm(horizon=T))
    if world > 1:
        rnnorm.synchronize(lstm)
    x = torch.randn(T, B, lstm.input_size)[:, rank::world].contiguous()
    times = []
    for _ in range(3 if T == 784 else 6):
        began = time.perf_counter()
        with rnnorm.use_backend(backend):
            output, _ = lstm(x)
        output[-1].sum().backward()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times[1:])


def on_a_rank(rank: int, world: int, store: str, backend: str) -> None:
    torch.set_num_threads(1)
    met = distributed.FileStore(store, world)
    distributed.init_process_group("gloo", store=met, rank=rank, world_size=world)
    for case in CASES:
        distributed.barrier()
        milliseconds = step_time(*case, rank, world, backend)
        if rank == 0:
            print(milliseconds, flush=True)
    distributed.destroy_process_group()


def ranks(world: int, backend: str) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "--world", str(world), "--store", f"{folder}/store"]
        words += ["--backend", backend]
        started = [
            subprocess.Popen([*words, "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
            for rank in range(world)
        ]
        said = [process.communicate()[0] for process in started]
    return [float(line) for line in said[0].split()]


def alone(threads: int, backend: str) -> list[float]:
    torch.set_num_threads(threads)
    return [step_time(*case, 0, 1, backend) for case in CASES]


def measure() -> None:
    columns = [ranks(2, "reference"), ranks(2, "cpu"), ranks(3, "cpu")]
    columns = [alone(1, "cpu"), alone(2, "cpu"), *columns]
    print("| T | B | H | one process | 2 threads | 2 ranks, reference | 2 ranks | 3 ranks |")
    print("|---|---|---|---|---|---|---|---|")
    for case, *row in zip(CASES, *columns, strict=True):
        print("|", " | ".join([*map(str, case), *(f"{t:.0f}" for t in row)]), "|")


def count(T: int = 784, H: int = 100) -> None:
    """Of one LSTM layer with the default norm, in float32."""
    forward, backward = 2 * T + 3, 2 * T + 1
    payload = 4 * (2 * (4 * H + 4 * H + H)) * T
    print(f"T={T}, H={H}: {forward} collectives forward, {backward} backward")
    print(f"payload of a rank: {payload / 1e6:.1f} MB each way")
    print("| ranks | MB received each way | waiting at 10 µs a hop | at 50 µs |")
    print("|---|---|---|---|")
    for world in (2, 4, 8, 16, 32, 64):
        # a ring
        hops = (world - 1) * (forward + backward)
        waits = " | ".join(f"{hops * s:.2f} s" for s in (10e-6, 50e-6))
        print(f"| {world} | {(world - 1) * payload / 1e6:.0f} | {waits} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", action="store_true")
    for name in ("rank", "world", "store", "backend"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if given.rank is not None:
        on_a_rank(int(given.rank), int(given.world), given.store, given.backend)
    elif given.count:
        count()
    else:
        measure()
