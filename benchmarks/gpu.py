"""Steps on a GPU, verified, and their time as a ratio to that of torch.nn, which is cuDNN's.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --precision high       # both sides may multiply in tf32
    python benchmarks/gpu.py --precision "torch's"    # cuDNN may, ours does not
    python benchmarks/gpu.py --evaluation
    python benchmarks/gpu.py --ragged                 # packed, lengths uniform in T/10 to T

In turn: torch.nn, our kernels with the graphs that calls of one shape come to be, the same launched
from the host, as ragged ones always are, and the reference kernel.
"""

from __future__ import annotations

import argparse
from copy import deepcopy
from functools import partial

import torch

from rnnorm.experiments.bench.layers import (
    Shape,
    Step,
    Variant,
    draw_input,
    make_layer,
    on_backend,
    run_layer,
    verify,
)
from rnnorm.experiments.bench.record import describe, device_and_system, machine
from rnnorm.experiments.bench.timing import interleave, launched, repeated

SHAPES = [
    Shape(64, 100, 1, 100),
    Shape(784, 100, 1, 100),
    Shape(32, 32, 40, 250),
    Shape(50, 64, 128, 512),
    Shape(35, 20, 650, 650),
    Shape(100, 100, 50, 1000),
    Shape(50, 512, 1024, 1024),
]
LAYERS = (
    ("LSTM", "batch"),
    ("LSTM", "layer"),
    ("GRU", "batch"),
    ("GRU", "layer"),
    ("RNN", "batch"),
)


def sides(cell: str, norm: str, shape: Shape, train: bool) -> dict[str, Step]:
    """What is timed; ours is verified."""
    torch.manual_seed(0)
    x = draw_input(shape).to("cuda")
    rival = make_layer(cell, shape).to("cuda").train(train)
    layer = make_layer(cell, shape, Variant(norm)).to("cuda")
    if not train:
        on_backend("reference", partial(run_layer, layer, x, True))
        layer.eval()
    step = partial(run_layer, layer, x, train)
    exact = partial(run_layer, deepcopy(layer).double(), x.double(), train)
    ours, reference = (partial(on_backend, name, step) for name in ("triton", "reference"))
    verify(f"{cell} {norm} {shape}", ours, reference, partial(on_backend, "reference", exact))
    return {
        "torch.nn": partial(run_layer, rival, x, train),
        "graphs": repeated(ours),
        "launched": launched(ours),
        "reference": reference,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--precision", choices=["highest", "high", "torch's"], default="highest", help="of products"
    )
    parser.add_argument("--cell", choices=["LSTM", "GRU", "RNN"], help="this one alone")
    parser.add_argument("--evaluation", action="store_true", help="forward alone, no gradient")
    parser.add_argument("--ragged", action="store_true", help="packed rows of T/10 to T steps")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} sees no CUDA device here")
    if args.precision != "torch's":
        torch.set_float32_matmul_precision(args.precision)
        # which has a switch of its own, on unless it is set
        torch.backends.cudnn.allow_tf32 = args.precision == "high"
    print(describe(machine() | device_and_system(torch.device("cuda"))))
    names = ("torch.nn", "graphs", "launched", "reference")
    print(" " * 29 + "".join(name.rjust(10) for name in names) + "    ratio of graphs")
    for cell, norm in [each for each in LAYERS if args.cell in (None, each[0])]:
        for whole in SHAPES:
            shape = whole._replace(shortest=whole.T // 10) if args.ragged else whole
            steps = sides(cell, norm, shape, not args.evaluation)
            timings = interleave(steps, args.seconds, clock="cuda")
            told = "".join(f"{1000 * timings[name].seconds:10.2f}" for name in names)
            print(f"{cell:5}{norm:6}{shape!s:19}{told} ms {timings['graphs']}", flush=True)


if __name__ == "__main__":
    main()
