"""Check that the fused kernels are right on this machine, and time them (``rnnorm check``)."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from rnnorm.experiments.bench.cases import UNITS, Case, all_cases, draw, layers
from rnnorm.experiments.bench.compare_kernels import LIMIT, Verdict, examine, raised
from rnnorm.experiments.bench.layers import (
    Shape,
    Step,
    Variant,
    draw_input,
    make_layer,
    on_backend,
    run_layer,
)
from rnnorm.experiments.bench.record import Record, describe, device_and_system, machine
from rnnorm.experiments.bench.timing import captured, interleave, launched, repeated
from rnnorm.experiments.writing import check_output_file, partial_of, write_whole
from rnnorm.kernels import dispatch, replayed_reference
from rnnorm.kernels.call import UncoveredError
from rnnorm.kernels.precision import products_in

TIMED = (
    Shape(64, 100, 1, 100),
    Shape(32, 32, 40, 250),
    Shape(16, 64, 128, 512),
    Shape(8, 100, 50, 1000),
)
#: seconds after which no more cases are examined; on a GPU most of them compile a kernel
BUDGETS = {"cpu": 120.0, "cuda": 600.0}
# by cell and norm, each case with the verdicts of the kernels
_Verdicts = dict[tuple[str, str], list[tuple[Case, dict[str, Verdict]]]]
# most failed cases that are printed; the file holds all
_TOLD = 20
# seconds between lines of progress without a terminal
_QUIET = 10.0


class DeviceMissingError(RuntimeError):
    """The device to be checked is missing."""


class OutOfTimeError(RuntimeError):
    """Time ran out before all cases were examined; those examined had no fault."""


def check(
    device: str = "cpu",
    *,
    out: str | Path | None = None,
    cases: Iterable[Case] | None = None,
    timed: Sequence[Shape] = TIMED,
    seconds: float = 1.0,
    budget: float | None = None,
) -> bool:
    """Examine the fused kernels of a device, time those without a fault, and print both.

    One case of each layer is always examined, the others while there is time.

    Args:
        device: device whose kernels are examined.
        out: JSON file for all that is printed and every fault.
        cases: the cases to examine, in this order; None for ``all_cases()``.
        timed: shapes of which a training step is timed.
        seconds: how long each of these shapes is timed.
        budget: how long cases are examined, in seconds; 120 by default, 600 for ``"cuda"``. The
            timings come after that.

    Returns:
        whether there was a kernel to examine, and nothing wrong with any.

    Raises:
        DeviceMissingError: if ``device`` is ``"cuda"`` and torch sees no CUDA device.
        OutOfTimeError: if no fault was found, but not all cases were examined.
        ValueError: if ``device`` is unknown, or ``budget`` is negative or NaN.
        OSError: if ``out`` cannot be written.
    """
    budget = _checked_budget(device, budget)
    if out is not None:
        _check_writable(Path(out))
    begin, torch_device = time.perf_counter(), torch.device(device)
    about = machine() | device_and_system(torch_device)
    print(describe(about))
    reasons = _reasons(torch_device)
    kernels = [name for name, reason in reasons.items() if not reason]
    for name, reason in reasons.items():
        print(f"{name}: {reason or 'examined'}")
    if device == "cpu":
        print("CUDA graphs: not examined, the CPU has none")
    wanted = list(all_cases() if cases is None else cases)
    print(f"\nlargest error as a multiple of the scale of rounding, at most {LIMIT:g}", flush=True)
    # the scale of rounding is that of float32, not of tf32
    with products_in("ieee") if device == "cuda" else nullcontext():
        found = _examined(wanted, kernels, torch_device, begin + budget)
    examined = sum(map(len, found.values()))
    lines, faults = _lines_and_faults(found, kernels)
    wrong_kernels = {fault["kernel"] for fault in faults}
    right = [kernel for kernel in kernels if kernel not in wrong_kernels]
    times = step_times(torch_device, right, timed, seconds, faults)
    _tell(faults)
    left = len(wanted) - examined
    summary = _summary(about, reasons, lines, faults, left, time.perf_counter() - begin)
    right_so_far = bool(lines) and not faults
    passed = right_so_far and not left
    # told before the file, whose disk may be full by now
    print(f"\n{summary}", flush=True)
    if out is not None:
        report = {
            "passed": passed,
            "summary": summary,
            "machine": about,
            "limit": LIMIT,
            "examined": examined,
            "cases": len(wanted),
            "kernels": reasons,
            "lines": lines,
            "faults": faults,
            "times": times,
        }
        text = json.dumps(report, indent=1, allow_nan=False)
        write_whole(Path(out), f"{text}\n".encode())
    if right_so_far and left:
        raise OutOfTimeError(f"{left} of {len(wanted)} cases were not examined")
    return passed


def _checked_budget(device: str, budget: float | None) -> float:
    """Return the seconds of examining, after a check that the device is there.

    Raises:
        DeviceMissingError, ValueError: as ``check``.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {device!r}")
    budget = BUDGETS[device] if budget is None else budget
    if not budget >= 0:
        raise ValueError(f"seconds of examining must be 0 or more, got {budget:g}")
    if device == "cuda" and not torch.cuda.is_available():
        raise DeviceMissingError(f"torch {torch.__version__} sees no CUDA device here")
    return budget


def _check_writable(out: Path) -> None:
    """Check, before any time is spent, that a file can be written.

    Raises:
        OSError: if it cannot be written.
    """
    check_output_file(out)
    partial_file = partial_of(out)
    partial_file.parent.mkdir(parents=True, exist_ok=True)
    partial_file.touch()
    partial_file.unlink()


def _examined(
    cases: Sequence[Case], kernels: Sequence[str], device: torch.device, end: float
) -> _Verdicts:
    """Examine cases by layer; after ``end``, only the first case of each layer still missing."""
    found: _Verdicts = {}
    terminal = sys.stderr.isatty()
    begin = said = time.perf_counter()
    with tqdm(cases, disable=not terminal, unit="case", leave=False) as bar:
        for i, case in enumerate(bar):
            now = time.perf_counter()
            if now > end and case.names in found:
                continue
            if not terminal and now - said > _QUIET:
                said = now
                print(f"{i} of {len(cases)} cases, {now - begin:.0f} s", flush=True)
            verdicts = examine(case, kernels, device)
            found.setdefault(case.names, []).append((case, verdicts))
    return found


def _lines_and_faults(
    found: _Verdicts, kernels: Sequence[str]
) -> tuple[list[Record], list[Record]]:
    """Print a line for each layer on each kernel; return their records, and one for each fault."""
    lines: list[Record] = []
    faults: list[Record] = []
    for (cell, norm), verdicts in found.items():
        for kernel in kernels:
            own = [(case, each[kernel]) for case, each in verdicts if kernel in each]
            if own:
                names = {"kernel": kernel, "cell": cell, "norm": norm}
                lines.append(_line(names, own))
                faults += [{**names, **fault} for case, v in own for fault in _faults(case, v)]
    return lines, faults


def _faults(case: Case, verdict: Verdict) -> list[Record]:
    """Return a record for each fault of a verdict."""
    return [{"case": str(case), "tensor": name, "what": what} for name, what in verdict.faults]


def _line(names: Record, own: Sequence[tuple[Case, Verdict]]) -> Record:
    """Print the line of one layer on one kernel and return its record."""
    case, verdict = max(own, key=lambda each: each[1].worst)
    failed = sum(bool(each.faults) for _, each in own)
    told = f"{failed} FAILED" if failed else "passed"
    print(
        f"{names['kernel']:8}{names['cell']:16}{names['norm']:22}{len(own):3} cases "
        f"{verdict.worst:6.2f} {told:>10}  {verdict.tensor}, {case}",
        flush=True,
    )
    return {
        **names,
        "cases": len(own),
        "failed": failed,
        # JSON has no infinity
        "worst": verdict.worst if math.isfinite(verdict.worst) else None,
        "tensor": verdict.tensor,
        "case": str(case),
    }


def _reasons(device: torch.device) -> dict[str, str]:
    """Return why each kernel besides the reference is not examined; empty text if it is."""
    reasons: dict[str, str] = {}
    tiny = [draw(Case(cell, norm, "dense", Shape(1, 2, 1, UNITS))) for cell, norm in layers()]
    requests = [drawn.request(device, torch.float32) for drawn in tiny]
    for kernel in dispatch.KERNELS:
        if kernel.name == "reference":
            continue
        if kernel.layer in (None, replayed_reference.layer):
            whose = "torch's own" if kernel.layer is None else "the reference in a graph"
            reasons[kernel.name] = f"not examined, it is {whose}"
            continue
        each = [dispatch.why_not(kernel.name, request) for request in requests]
        reasons[kernel.name] = "" if "" in each else each[0]
    return reasons


def _tell(faults: Sequence[Record]) -> None:
    """Print a line for each case with a fault, up to ``_TOLD`` lines."""
    told = [
        f"{' '.join(where)}: " + ", ".join(f"{f['tensor']} {f['what']}" for f in found)
        for where, found in groupby(
            faults, key=lambda f: (f["kernel"], f["cell"], f["norm"], f["case"])
        )
    ]
    if told:
        print("", *told[:_TOLD], sep="\n")
    if len(told) > _TOLD:
        print(f"and {len(told) - _TOLD} more cases: --out FILE keeps all of them")


def _summary(
    about: Record,
    reasons: Mapping[str, str],
    lines: Sequence[Record],
    faults: Sequence[Record],
    left: int,
    seconds: float,
) -> str:
    """Return the line of verdict, machine and versions that a bug report should begin with."""
    where = about["gpu"] if "gpu" in about else f"{about['processor']}, {about['isa']}"
    versions = ", ".join(
        f"{name} {about[name]}"
        for name in ("driver", "rnnorm", "torch", "cuda", "triton", "python", "system")
        if name in about
    )
    if not lines:
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        return f"rnnorm check: NOTHING TO EXAMINE on {where} ({why}); {versions}"
    kernels = ", ".join(dict.fromkeys(line["kernel"] for line in lines))
    cases, failed = (sum(line[name] for line in lines) for name in ("cases", "failed"))
    worst = max(lines, key=lambda line: math.inf if line["worst"] is None else line["worst"])
    if faults:
        first = faults[0]
        verdict = f"FAILED ({failed} of {cases} cases of {kernels}"
        verdict += f"; first {first['cell']} {first['norm']} {first['case']}: {first['tensor']}"
        verdict += f" {first['what']})"
    else:
        verdict = f"{cases} cases of {kernels}, worst {worst['worst']:.2f} of {LIMIT:g}"
        verdict = f"OUT OF TIME (nothing wrong in {verdict})" if left else f"passed ({verdict})"
    if left:
        verdict += f", {left} more cases NOT EXAMINED for want of time (--seconds)"
    return f"rnnorm check: {verdict} on {where}; {versions}; {seconds:.0f} s"


def step_times(
    device: torch.device,
    kernels: Sequence[str],
    shapes: Sequence[Shape],
    seconds: float,
    faults: list[Record],
) -> list[Record]:
    """Time training steps, print the medians, and add what a kernel raises to ``faults``."""
    cuda = device.type == "cuda"
    times: list[Record] = []
    print(
        "\nmedian ms of a training step: torch.nn.LSTM, and an LSTM with batch norm on each kernel"
    )
    for shape in shapes:
        torch.manual_seed(0)
        data: Any = draw_input(shape)
        data = data.to(device)
        rival = make_layer("LSTM", shape).to(device)
        steps: dict[str, Step] = {"torch.nn": partial(run_layer, rival, data, True)}
        for name in ("reference", *kernels):
            layer = make_layer("LSTM", shape, Variant("batch", name)).to(device)
            step = partial(on_backend, name, partial(run_layer, layer, data, True))
            own: dict[str, Step] = {name: launched(step)}
            try:
                own[name]()
                if cuda and name != "reference":
                    own |= {f"{name} graphs": repeated(step), f"{name} captured": captured(step)}
            except UncoveredError:
                continue
            except Exception as error:
                names = {"kernel": name, "cell": "LSTM", "norm": "batch"}
                case = f"training step {shape}"
                faults.append({**names, "case": case, "tensor": "all", "what": raised(error)})
                continue
            steps |= own
        timings = interleave(steps, seconds, clock="cuda" if cuda else "wall", fewest=3)
        if not times:
            print(" " * 16 + "".join(name.rjust(17) for name in steps))
        columns = "".join(f"{1000 * timing.seconds:17.2f}" for timing in timings.values())
        print(f"{shape!s:16}{columns}", flush=True)
        times.append({"shape": str(shape), **{n: t.seconds for n, t in timings.items()}})
    return times
