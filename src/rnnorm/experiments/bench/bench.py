"""Time each cell, norm and backend on this machine against torch.nn (``rnnorm bench``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

import rnnorm
from rnnorm.experiments.bench.cases import Case, draw
from rnnorm.experiments.bench.layers import Shape, Variant, prepare
from rnnorm.experiments.bench.record import Record, describe, machine, write
from rnnorm.experiments.bench.timing import check_seconds, interleave, torch_threads
from rnnorm.experiments.writing import refuse_file
from rnnorm.kernels import dispatch

CELLS = ("LSTM", "GRU", "RNN")
NORMS = (None, "batch", "layer")
SHAPES = (Shape(64, 100, 1, 100), Shape(100, 32, 40, 250), Shape(35, 20, 650, 650))


def bench(
    shapes: Sequence[Shape] = SHAPES,
    *,
    threads: int | None = None,
    seconds: float = 4.0,
    out: str | Path | None = None,
) -> list[Record]:
    """Time every cell, norm and backend as a ratio to torch.nn's class, and print a table.

    Every result is compared with the reference kernel's before its time is taken. A training step
    is forward and backward with all gradients, an evaluation forward with population statistics.

    Args:
        shapes: shapes of the layers and their input.
        threads: number of threads; torch's number by default.
        seconds: how long each line of the table is measured.
        out: folder for ``bench.csv`` and ``bench.png``.

    Returns:
        A record for each number of the table.

    Raises:
        ValueError: if ``threads`` is not from 1 to this machine's cores, or ``seconds`` is not
            positive and finite.
        NotADirectoryError: if ``out`` is a file.
        VerificationError: if a kernel's result differs from the reference's.
    """
    if out is not None:
        refuse_file(Path(out))
    check_seconds(seconds)
    records = []
    with torch_threads(threads):
        about = machine()
        print(describe(about))
        variants = [Variant(norm, backend) for norm in NORMS for backend in rnnorm.backends()]
        why_not = {(cell, v): _why_not(cell, v) for v in variants for cell in CELLS}
        columns = [v for v in variants if not all(why_not[cell, v] for cell in CELLS)]
        print(*sorted({f"{v.backend}: {why}" for (_, v), why in why_not.items() if why}), sep="\n")
        print("\ntime as a ratio to torch.nn's class; time steps x rows x input size x units")
        print(_aligned("", "", [str(v.norm or "none") for v in columns]))
        print(_aligned("", "torch.nn", [str(v.backend) for v in columns]))
        for shape in shapes:
            for mode in ("training", "evaluation"):
                for cell in CELLS:
                    covered = [v for v in columns if not why_not[cell, v]]
                    line = _measure(cell, shape, mode, covered, seconds)
                    by_variant = {(r["norm"], r["backend"]): f"{r['ratio']:.2f}" for r in line}
                    rival = f"{1000 * line[0]['torch.nn']:.2f} ms"
                    ratios = [by_variant.get((v.norm or "none", v.backend), "-") for v in columns]
                    print(_aligned(f"{cell} {shape} {mode}", rival, ratios), flush=True)
                    records += [{**r, **about} for r in line]
    if out is not None:
        files = write(
            records,
            out,
            "bench",
            row=lambda r: f"{r['cell']} {r['shape']} {r['mode']}",
            series=lambda r: f"{r['norm']} {r['backend']}",
            title="time as a ratio to torch.nn's class",
        )
        print("", *files, sep="\n")
    return records


def _why_not(cell: str, variant: Variant) -> str:
    """Return why a backend does not run a cell with a norm; empty text if it does."""
    tiny = draw(Case(cell, variant.norm or "none", "dense", Shape(1, 2, 1, 1)))
    request = tiny.request(torch.device("cpu"), torch.float32)
    return dispatch.why_not(str(variant.backend), request)


def _measure(
    cell: str, shape: Shape, mode: str, variants: Sequence[Variant], seconds: float
) -> list[Record]:
    """Time the variants of a cell against torch.nn's class and return their records."""
    steps = prepare(cell, shape, variants, train=mode == "training")
    rival, *timings = interleave(steps, seconds).values()
    return [
        {
            "cell": cell,
            "norm": variant.norm or "none",
            "backend": variant.backend,
            "mode": mode,
            "shape": str(shape),
            "seconds": timing.seconds,
            "torch.nn": rival.seconds,
            "ratio": timing.ratio,
            "rounds": timing.rounds,
        }
        for variant, timing in zip(variants, timings, strict=True)
    ]


def _aligned(first: str, rival: str, values: Sequence[str]) -> str:
    """Format one line of the table in columns."""
    return f"{first:31}{rival:>11}" + "".join(value.rjust(11) for value in values)
