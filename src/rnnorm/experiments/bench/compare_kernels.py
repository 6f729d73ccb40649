"""Compare the kernels with the reference on one case, also in repeated runs and CUDA graphs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnorm.experiments.bench.cases import Case, Drawn, draw
from rnnorm.experiments.bench.timing import captured, repeated, without_graphs
from rnnorm.kernels import dispatch
from rnnorm.kernels.call import UncoveredError

#: largest error allowed, as a multiple of the scale of rounding
LIMIT = 16.0

Results = dict[str, Tensor]


class Verdict(NamedTuple):
    """The verdict on one kernel and case.

    Attributes:
        worst: the largest error of a tensor, as a multiple of its scale of rounding.
        tensor: the name of the tensor with that error.
        faults: pairs of a tensor's name and its fault.
    """

    worst: float
    tensor: str
    faults: list[tuple[str, str]]


def examine(case: Case, kernels: Iterable[str], device: torch.device) -> dict[str, Verdict]:
    """Compare each kernel that covers a case with the reference in float64 on the CPU.

    Errors are judged by a scale of rounding that is the same for every kernel and processor
    (:func:`scales`).

    The first run has its memory poisoned with NaN. Three more runs must agree bit by bit, and on a
    GPU so must replays of CUDA graphs: of one captured around the step, and of the kernel's own.

    Args:
        case: the case to draw.
        kernels: names of kernels.
        device: where the kernels run.

    Returns:
        The verdict on each covering kernel by name.
    """
    drawn = draw(case)
    request = drawn.request(device, case.dtype)
    covering = [name for name in kernels if not dispatch.why_not(name, request)]
    if not covering:
        return {}
    exact = exact_results(drawn)
    scale = scales(case, drawn, exact)
    here = drawn.to(device, case.dtype)
    graph = device.type == "cuda" and case.mode in ("dense", "evaluation")

    verdicts = {}
    for kernel in covering:
        try:
            with without_graphs():
                with _poisoned():
                    first = _on_cpu(here.results(kernel))
                runs = [_on_cpu(here.results(kernel)) for _ in range(3)]
            ways = (captured, repeated) if graph else ()
            replays = [_on_cpu(_replayed(here, kernel, way)) for way in ways]
        except UncoveredError:
            continue
        # any other exception of a kernel is a fault
        except Exception as error:
            verdicts[kernel] = Verdict(math.inf, "all", [("all", raised(error))])
            continue
        ratios = partial(multiples, exact=exact, scale=scale)
        verdicts[kernel] = _verdict(exact, [first, runs[0]], ratios, runs, replays)
    return verdicts


def exact_results(drawn: Drawn) -> Results:
    """Compute the reference kernel's results in float64 on the CPU."""
    return drawn.to(torch.device("cpu"), torch.float64).results("reference")


def errors(found: Results, exact: Results) -> dict[str, tuple[float, float]]:
    """Return the relative error of each tensor as a whole, and that of its worst entry.

    The first is the norm of the difference relative to the tensor's norm, for a weight the largest
    of its gates. The error of an entry is relative to the sum of the entry's size and the tensor's
    root mean square.
    """
    units = exact["h_n"].shape[-1]

    def of(found: Tensor, exact: Tensor) -> tuple[float, float]:
        """Return both errors of one tensor."""
        exact = exact.double()
        off = (found.double() - exact).abs()
        # avoid dividing by zero where the tensor is zero
        size = float(exact.norm()) or 1.0
        entries = off / (exact.abs() + size / exact.numel() ** 0.5)
        # a weight has one row per unit and gate
        gates = max(1, exact.shape[0] // units)
        parts = zip(off.chunk(gates), exact.chunk(gates), strict=True)
        whole = [wrong.norm() / (float(part.norm()) or size) for wrong, part in parts]
        return float(torch.stack(whole).max()), float(entries.max())

    return {name: of(found[name], true) for name, true in exact.items()}


def scales(case: Case, drawn: Drawn, exact: Results) -> dict[str, tuple[float, float]]:
    """Return the scales of rounding by which both errors of each tensor are judged.

    A scale is how far the result in float64 moves when inputs, weights and upstream gradients
    change in the last bit of the case's dtype: the root mean square over four such changes, but at
    least the rounding expected of the longest sums.
    """
    # the longest sums are over units or over frames
    terms = max(case.shape.H, case.shape.T * case.shape.B)
    eps = torch.finfo(case.dtype).eps
    # half-precision kernels sum in float32, and so round less often
    half = eps > 1e-4
    part, least = (0.25, eps / 2) if half else (1.0, eps * (4 + terms**0.5 / 4))
    # with fewer draws a scale is sometimes too small by chance
    moved = [errors(exact_results(drawn.jittered(seed)), exact) for seed in range(1, 5)]

    def scale(name: str) -> tuple[float, float]:
        """Return both scales of one tensor."""
        kinds = zip(*(each[name] for each in moved), strict=True)
        whole, entry = (part * math.hypot(*own) / len(moved) ** 0.5 for own in kinds)
        # the worst of many entries has the larger error
        return max(whole, least), max(entry, 2 * least)

    return {name: scale(name) for name in exact}


def multiples(
    found: Results, exact: Results, scale: Mapping[str, tuple[float, float]]
) -> dict[str, float]:
    """Return the larger of each tensor's two errors, as a multiple of its scale."""
    return {
        name: max(e / s for e, s in zip(pair, scale[name], strict=True))
        for name, pair in errors(found, exact).items()
    }


def _verdict(
    exact: Results,
    found: Sequence[Results],
    ratios: Callable[[Results], dict[str, float]],
    runs: Sequence[Results],
    replays: Sequence[Results],
) -> Verdict:
    """Judge the errors, and the equality of runs and replays, of one kernel."""
    faults: dict[str, str] = {}
    worst, tensor = 0.0, "output"
    for each in found:
        for name, ratio in ratios(each).items():
            if not math.isfinite(ratio):
                ratio = math.inf
                faults[name] = "is not finite"
            elif ratio > LIMIT:
                off, entry = errors(each, exact)[name]
                said = f"is off by {off:.1e} and an entry by {entry:.1e}"
                faults.setdefault(name, f"{said}, {ratio:.3g} times the scale of rounding")
            if ratio > worst:
                worst, tensor = ratio, name
    for name in exact:
        if not all(_same_bits(run[name], runs[0][name]) for run in runs):
            faults.setdefault(name, "differs from run to run")
        elif not all(_same_bits(replay[name], runs[0][name]) for replay in replays):
            faults.setdefault(name, "differs where a CUDA graph is replayed")
    return Verdict(worst, tensor, list(faults.items()))


@contextmanager
def _poisoned() -> Iterator[None]:
    """Fill with NaN the memory that torch allocates and does not write."""
    utils: Any = torch.utils.deterministic
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        utils.fill_uninitialized_memory,
    )
    # only the filling is wanted, not deterministic algorithms
    torch.use_deterministic_algorithms(True, warn_only=True)
    utils.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic")
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        utils.fill_uninitialized_memory = before[2]


def _replayed(
    drawn: Drawn, kernel: str, way: Callable[[Callable[[], Results]], Callable[[], Results]]
) -> Results:
    """Capture a step on flipped data, and return the results of its replay on the case's data."""
    own = [leaf.clone() for leaf in drawn.leaves]
    for leaf in drawn.leaves:
        leaf.copy_(leaf.flip(-1))
    replay = way(partial(drawn.results, kernel))
    for leaf, value in zip(drawn.leaves, own, strict=True):
        leaf.copy_(value)
    return replay()


def raised(error: Exception) -> str:
    """Describe an exception in one line."""
    lines = str(error).splitlines() or [""]
    return f"raised {type(error).__name__}: {lines[0]}"


def _on_cpu(results: Results) -> Results:
    """Copy results to the CPU."""
    return {name: tensor.cpu() for name, tensor in results.items()}


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors hold the same bytes."""
    return torch.equal(*(each.flatten().view(torch.uint8) for each in (one, other)))
