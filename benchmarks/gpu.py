"""Steps on a GPU, verified, with time and memory beside those of torch.nn, which is cuDNN's.

    python benchmarks/gpu.py                          # as torch starts: both sides in tf32
    python benchmarks/gpu.py --autocast               # both sides in bfloat16
    python benchmarks/gpu.py --precision highest      # both sides in float32
    python benchmarks/gpu.py --evaluation
    python benchmarks/gpu.py --ragged                 # packed, lengths uniform in T/10 to T
    python benchmarks/gpu.py --shape 50x64x128x512 --cell LSTM --norm batch --no-reference

In turn: torch.nn, our kernels with the graphs that calls of one shape come to be, the same launched
from the host, as ragged ones always are, and the reference kernel. Memory is what a step allocates
at most beside the layer and its input, with what a graph keeps. A table of ratios comes last.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor

import rnnorm
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
from rnnorm.kernels import cuda_graphs
from rnnorm.kernels.precision import as_in_cudnn, products_in

DEVICE = torch.device("cuda")
SHAPES = {
    str(shape): shape
    for shape in (
        Shape(64, 100, 1, 100),
        Shape(784, 100, 1, 100),
        Shape(32, 32, 40, 250),
        Shape(50, 64, 128, 512),
        Shape(64, 16, 512, 512),
        Shape(35, 20, 650, 650),
        Shape(100, 100, 50, 1000),
        Shape(70, 80, 400, 1150),
        Shape(50, 512, 1024, 1024),
        Shape(1, 1024, 512, 512),
        Shape(500, 32, 80, 320, layers=3, bidirectional=True),
    )
}
LAYERS = (
    ("LSTM", "batch"),
    ("LSTM", "layer"),
    ("GRU", "batch"),
    ("GRU", "layer"),
    ("RNN", "batch"),
)
# those of --precision, as our switches are set; torch's are left as they are
PRECISIONS = {"torch's": None, "high": "tf32", "highest": "ieee"}


def sides(
    cell: str, norm: str, shape: Shape, train: bool, autocast: bool, backend: str
) -> dict[str, Step]:
    """What is timed; ours is verified."""
    torch.manual_seed(0)
    x = draw_input(shape).to(DEVICE)
    rival = make_layer(cell, shape).to(DEVICE).train(train)
    layer = make_layer(cell, shape, Variant(norm)).to(DEVICE)
    if not train:
        on_backend("reference", partial(run_layer, layer, x, True))
        layer.eval()

    def mixed(step: Step) -> dict[str, Tensor]:
        """Run a step, under autocast if that is asked."""
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=autocast):
            return step()

    def as_ours(step: Step) -> dict[str, Tensor]:
        """Run a step with products of torch's like those of the kernels."""
        with as_in_cudnn(DEVICE, torch.float32):
            return step()

    step = partial(mixed, partial(run_layer, layer, x, train))
    exact = partial(run_layer, deepcopy(layer).double(), x.double(), train)
    ours, reference = (partial(on_backend, name, step) for name in (backend, "reference"))
    expected = partial(as_ours, reference)
    verify(f"{cell} {norm} {shape}", ours, expected, partial(on_backend, "reference", exact))
    return {
        "torch.nn": partial(mixed, partial(run_layer, rival, x, train)),
        "graphs": ours,
        "launched": launched(ours),
        "reference": reference,
    }


def peak_mb(step: Callable[[], object]) -> float:
    """Return what a step allocates at most, with what a graph of its own keeps."""
    cuda_graphs.forget()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(cuda_graphs.SIGHTINGS + 1):
        step()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def measure(args: argparse.Namespace) -> int:
    """Print a line for each layer and shape, and a table of ratios; return how many failed."""
    names = ["torch.nn", "graphs", "launched", *["reference"] * (not args.no_reference)]
    columns = "".join(name.rjust(10) for name in names)
    print(f"{'ms':<30}{columns}{'graphs / torch.nn':>20}    MB{columns}")
    shapes = {name: SHAPES[name] for name in args.shape or SHAPES}
    table: dict[tuple[str, str], list[str]] = {}
    failed = 0
    for cell, norm in LAYERS:
        if args.cell not in (None, cell) or args.norm not in (None, norm):
            continue
        for name, whole in shapes.items():
            shape = whole._replace(shortest=max(1, whole.T // 10)) if args.ragged else whole
            row = table.setdefault((cell, norm), [])
            try:
                made = sides(cell, norm, shape, not args.evaluation, args.autocast, args.backend)
                steps = {side: made[side] for side in names}
                peaks = {side: peak_mb(step) for side, step in steps.items()}
                steps["graphs"] = repeated(steps["graphs"])
                timings = interleave(steps, args.seconds, clock="cuda")
            # one that fails must not cost the others
            except RuntimeError as error:
                print(f"{cell:5}{norm:6}{name:19}{error}", flush=True)
                failed += 1
                row.append("failed")
                continue
            times = "".join(f"{1000 * timings[side].seconds:10.2f}" for side in names)
            memory = "".join(f"{peaks[side]:10.1f}" for side in names)
            ours = timings["graphs"]
            print(f"{cell:5}{norm:6}{name:19}{times}{ours!s:>20}      {memory}", flush=True)
            row.append(f"{ours.ratio:.2f} ({peaks['graphs'] / peaks['torch.nn']:.2f})")
    print("\n| ÷ `torch.nn`: time (memory) |", " | ".join(shapes), "|")
    print("|---" * (1 + len(shapes)) + "|")
    for (cell, norm), row in table.items():
        print(f"| {'BN' if norm == 'batch' else 'LN'}-{cell} |", " | ".join(row), "|")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="torch's", help="of products of float32"
    )
    parser.add_argument("--autocast", action="store_true", help="bfloat16 on both sides")
    parser.add_argument("--shape", choices=SHAPES, action="append", help="this alone; repeatable")
    parser.add_argument("--cell", choices=["LSTM", "GRU", "RNN"], help="this one alone")
    parser.add_argument("--norm", choices=["batch", "layer"], help="this one alone")
    parser.add_argument("--backend", choices=rnnorm.backends(), default="triton", help="our kernel")
    parser.add_argument("--evaluation", action="store_true", help="forward alone, no gradient")
    parser.add_argument("--ragged", action="store_true", help="packed rows of T/10 to T steps")
    parser.add_argument("--no-reference", action="store_true", help="do not time the reference")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} sees no CUDA device here")
    print(describe(machine() | device_and_system(DEVICE)))
    precision = PRECISIONS[args.precision]
    with products_in(precision) if precision else nullcontext():
        return 1 if measure(args) else 0


if __name__ == "__main__":
    raise SystemExit(main())
