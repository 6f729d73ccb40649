"""The kernels' matrix product alone, in per cent of the multiply-adds that one core can do.

python benchmarks/product.py --out build/bench
RNNORM_CPU_ISA=portable python benchmarks/product.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rnnorm.experiments.bench.product import time_product
from rnnorm.experiments.bench.record import Record, describe, machine, write
from rnnorm.experiments.bench.timing import torch_threads

# rows, length of the sums and panels of a step of an LSTM in benchmarks/train_step.py
SIZES = [(100, 100, 7), (64, 512, 32), (20, 650, 41), (32, 250, 16), (20, 1000, 63)]
SIZES += [(100, 1000, 63), (1, 256, 16), (4, 256, 16), (16, 256, 16)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each row")
    parser.add_argument("--out", type=Path, help="folder for product.csv and product.png")
    args = parser.parse_args()
    records: list[Record] = []
    with torch_threads(1):
        about = machine()
        print(describe(about))
        for n, K, panels in SIZES:
            r = time_product(n, K, panels, args.seconds)
            print(
                f"{r['shape']:14} {r['product']:7.1f} of {r['peak']:7.1f} GFLOP/s "
                f"{100 * r['ratio']:5.1f} %",
                flush=True,
            )
            records.append(r | about)
    if args.out:
        write(
            records,
            args.out,
            "product",
            row=lambda r: str(r["shape"]),
            series=lambda r: str(r["isa"]),
            title="share of the multiply-adds of a core",
        )


if __name__ == "__main__":
    main()
