"""Time and memory of our layers as a ratio to torch.nn's, verified first, measured in turn.

    python benchmarks/train_step.py --out build/bench
    MALLOC_MMAP_THRESHOLD_=17179869184 MALLOC_TRIM_THRESHOLD_=17179869184 \
        MALLOC_TOP_PAD_=1073741824 python benchmarks/train_step.py --out build/bench-tuned

The second form keeps freed memory, so that neither side loses time to page faults.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from rnnorm.experiments.bench.layers import Shape, Step, Variant, draw_input, make_layer, prepare
from rnnorm.experiments.bench.record import Record, describe, machine, write
from rnnorm.experiments.bench.timing import interleave, torch_threads
from rnnorm.experiments.writing import refuse_file

PAPERS = [
    Shape(784, 100, 1, 100),
    Shape(100, 100, 50, 1000),
    Shape(35, 20, 650, 650),
    Shape(100, 32, 40, 250),
    Shape(50, 64, 128, 512),
]
RAGGED = Shape(100, 64, 123, 250, shortest=20, layers=5, bidirectional=True)
# Laurent et al. 2015: 24 utterances, of all lengths or of similar ones; the longest take minutes
SPEECH = [
    RAGGED._replace(T=T, B=24, shortest=least) for T, least in ((400, 20), (400, 300), (1300, 20))
]
SCALING = [
    *(Shape(T, 32, 64, 128) for T in (10, 30, 100, 300, 1000)),
    *(Shape(50, B, 64, 128) for B in (4, 12, 40, 120, 400)),
    *(Shape(50, 32, 64, H) for H in (16, 48, 160, 480, 1600)),
]
PROJECTED = [
    Shape(10, 32, 64, 128, proj_size=32),
    Shape(100, 32, 40, 250, proj_size=100),
    Shape(50, 16, 80, 1024, proj_size=256),
]
STREAMING = [Shape(1, 1, 256, 256), Shape(1, 16, 256, 256), Shape(200, 1, 64, 256)]
# the first two are so small that only the price of a call is left
SHORT = [Shape(2, 8, 8, 8), Shape(6, 3, 4, 8), Shape(10, 32, 64, 128)]
STACKED = [
    Shape(2, 8, 8, 8, layers=2),
    Shape(1, 16, 64, 128, layers=2),
    Shape(20, 16, 32, 64, layers=2),
    Shape(20, 16, 32, 64, bidirectional=True),
]


class Row(NamedTuple):
    cell: str
    variant: Variant
    train: bool
    shapes: list[Shape]


ROWS = {
    "train": Row("LSTM", Variant("batch"), True, PAPERS),
    "plain": Row("LSTM", Variant(None, "cpu"), True, PAPERS),
    "eval": Row("LSTM", Variant("batch"), False, PAPERS),
    "gru": Row("GRU", Variant("batch"), True, PAPERS),
    "rnn": Row("RNN", Variant("batch"), True, PAPERS),
    "layer": Row("LSTM", Variant("layer"), True, PAPERS),
    "layer-gru": Row("GRU", Variant("layer"), True, PAPERS),
    "layer-rnn": Row("RNN", Variant("layer"), True, PAPERS),
    "layer-eval": Row("LSTM", Variant("layer"), False, PAPERS),
    "loop": Row("LSTM", Variant("batch", "reference"), True, PAPERS),
    "memory": Row("LSTM", Variant("batch"), True, PAPERS),
    "ragged": Row("LSTM", Variant("batch"), True, [RAGGED]),
    "speech": Row("LSTM", Variant("laurent2015-sequence"), True, SPEECH),
    "peak": Row("LSTM", Variant("laurent2015-sequence"), True, SPEECH),
    "streaming": Row("LSTM", Variant("batch"), False, STREAMING),
    "short": Row("LSTM", Variant("batch"), True, SHORT),
    "short-eval": Row("LSTM", Variant("batch"), False, SHORT),
    "stacked": Row("LSTM", Variant("batch"), True, STACKED),
    "stacked-eval": Row("LSTM", Variant("batch"), False, STACKED),
    "layer-stacked": Row("LSTM", Variant("layer"), True, STACKED),
    "layer-stacked-eval": Row("LSTM", Variant("layer"), False, STACKED),
    "layer-streaming": Row("LSTM", Variant("layer"), False, STREAMING),
    "layer-short": Row("LSTM", Variant("layer"), True, SHORT),
    "layer-short-eval": Row("LSTM", Variant("layer"), False, SHORT),
    "projected": Row("LSTM", Variant("batch"), True, PROJECTED),
    "projected-loop": Row("LSTM", Variant("batch", "reference"), True, PROJECTED),
    "layer-projected": Row("LSTM", Variant("layer"), True, PROJECTED),
    "projected-eval": Row("LSTM", Variant("batch"), False, PROJECTED),
    "layer-projected-eval": Row("LSTM", Variant("layer"), False, PROJECTED),
    "scaling": Row("LSTM", Variant("batch"), True, SCALING),
}


def kept_bytes(layer: nn.RNNBase, x: Tensor) -> int:
    """Return the resident bytes that a layer's call keeps for backward (Linux only).

    Memory that is reserved and never touched does not count; the output and memory that malloc or
    the kernels keep for the next call do.
    """
    # start threads and load libraries before measuring
    layer(x[:1])
    before = _resident("VmRSS")
    result = layer(x)
    after = _resident("VmRSS")
    del result
    return after - before


def peak_bytes(layer: nn.RNNBase, x: Tensor | PackedSequence) -> int:
    """Return the bytes by which a training step raises this process's peak memory (Linux only).

    Gradients count; weights, input and memory that malloc keeps from an earlier step do not.
    """
    # resets the peak to the present size
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    output = layer(x)[0]
    torch.autograd.backward((output.data if isinstance(output, PackedSequence) else output).sum())
    return _resident("VmHWM") - before


def _resident(name: str) -> int:
    """Return this process's memory in bytes, now (``VmRSS``) or at its peak (``VmHWM``)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


MEMORY = {"memory": kept_bytes, "peak": peak_bytes}


def measure(
    what: str, shape: Shape, seconds: float, clock: str, autocast: bool
) -> dict[str, float | str]:
    cell, variant, train, _ = ROWS[what]
    steps = prepare(cell, shape, [variant], train=train)
    if autocast:
        steps = {name: partial(in_bfloat16, step) for name, step in steps.items()}
    rival, own = interleave(steps, seconds, clock=clock).values()
    times = {"ours": 1000 * own.seconds, "torch.nn": 1000 * rival.seconds}
    low, high = own.spread
    return {"unit": "ms", **times, "ratio": own.ratio, "low": low, "high": high}


def in_bfloat16(step: Step) -> dict[str, Tensor]:
    # entered anew for each step, as in training: autocast keeps casts of weights until it is left
    with torch.autocast("cpu", torch.bfloat16):
        return step()


def alone(threads: int, function: Callable[..., Any], *args: Any) -> Any:
    """A call in a process of its own: what malloc keeps from one would change the next."""
    with get_context("spawn").Pool(1, torch.set_num_threads, (threads,)) as pool:
        return pool.apply(function, args)


def memory(what: str, shape: Shape, threads: int) -> dict[str, float | str]:
    sides = (ROWS[what].variant, None)
    ours, theirs = (alone(threads, mebibytes, what, shape, side) for side in sides)
    return {"unit": "MiB", "ours": ours, "torch.nn": theirs, "ratio": ours / theirs}


def mebibytes(what: str, shape: Shape, variant: Variant | None) -> float:
    torch.manual_seed(0)
    x = draw_input(shape)
    return MEMORY[what](make_layer(ROWS[what].cell, shape, variant), x) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", nargs="*", help=f"of {', '.join(ROWS)}; all if none")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=5.0, help="for each row")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--autocast", action="store_true", help="autocast both to bfloat16")
    parser.add_argument("--out", type=Path, help="folder for train_step.csv and train_step.png")
    args = parser.parse_args()
    if unknown := set(args.what) - set(ROWS):
        parser.error(f"{', '.join(unknown)} must be of {', '.join(ROWS)}")
    if args.out:
        refuse_file(args.out)
    records: list[Record] = []
    with torch_threads(args.threads):
        about = {**machine(), "clock": args.clock, "autocast": args.autocast}
        print(describe(about))
        for what in [name for name in ROWS if name in (args.what or ROWS)]:
            for shape in ROWS[what].shapes:
                numbers = (
                    memory(what, shape, args.threads)
                    if what in MEMORY
                    else alone(
                        args.threads, measure, what, shape, args.seconds, args.clock, args.autocast
                    )
                )
                r = {"what": what, "shape": str(shape), **numbers}
                sides = " ".join(f"{r[side]:9.3f} {r['unit']:3}" for side in ("ours", "torch.nn"))
                spread = f"[{r['low']:.2f} {r['high']:.2f}]" if "low" in r else ""
                print(f"{what:16} {r['shape']:18} {sides} {r['ratio']:6.2f} {spread}", flush=True)
                records.append({"low": "", "high": ""} | r | about)
    if args.out:
        write(
            records,
            args.out,
            "train_step",
            row=lambda r: f"{r['what']} {r['shape']}",
            series=lambda r: r["unit"],
            title="ratio to torch.nn",
        )


if __name__ == "__main__":
    main()
