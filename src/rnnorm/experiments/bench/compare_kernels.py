"""One case on every kernel: is it right, with any memory, in every run, in CUDA graphs?"""

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

#: how many times its scale of rounding a kernel's error may be
LIMIT = 16.0

Results = dict[str, Tensor]


class Verdict(NamedTuple):
    """On one kernel and case.

    Attributes:
        worst: the largest error of a tensor, as a multiple of its scale of rounding.
        tensor: whose.
        faults: tensor and what is wrong with it.
    """

    worst: float
    tensor: str
    faults: list[tuple[str, str]]


def examine(case: Case, kernels: Iterable[str], device: torch.device) -> dict[str, Verdict]:
    """Compares every kernel that covers a case with the reference in float64 on the CPU.

    An error is judged by a scale of rounding that no draw of rounding enters, so that it is the
    same for every kernel and processor (:func:`scales`).

    Memory is poisoned in a first run; three more must have the same bits, and on a GPU replays of
    CUDA graphs too: of one captured around the step, and of the kernel's own.

    Args:
        case: what is drawn.
        kernels: names.
        device: where they run.

    Returns:
        the verdict on each by name.
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
        # whatever a kernel raises is a fault of it
        except Exception as error:
            verdicts[kernel] = Verdict(math.inf, "all", [("all", raised(error))])
            continue
        ratios = partial(multiples, exact=exact, scale=scale)
        verdicts[kernel] = _verdict(exact, [first, runs[0]], ratios, runs, replays)
    return verdicts


def exact_results(drawn: Drawn) -> Results:
    """What the reference computes in float64 on the CPU."""
    return drawn.to(torch.device("cpu"), torch.float64).results("reference")


def errors(found: Results, exact: Results) -> dict[str, tuple[float, float]]:
    """How far each tensor is off as a whole, and where it is off most.

    The first is the norm of the difference relative to the tensor's, of a weight that of the gate
    that is off most. The error of an entry is relative to the entry and the tensor's root mean
    square together.
    """
    units = exact["h_n"].shape[-1]

    def of(found: Tensor, exact: Tensor) -> tuple[float, float]:
        exact = exact.double()
        off = (found.double() - exact).abs()
        # two gradients that are zero are equal
        size = float(exact.norm()) or 1.0
        entries = off / (exact.abs() + size / exact.numel() ** 0.5)
        # a weight has as many rows as there are units for each gate
        gates = max(1, exact.shape[0] // units)
        parts = zip(off.chunk(gates), exact.chunk(gates), strict=True)
        whole = [wrong.norm() / (float(part.norm()) or size) for wrong, part in parts]
        return float(torch.stack(whole).max()), float(entries.max())

    return {name: of(found[name], true) for name, true in exact.items()}


def scales(case: Case, drawn: Drawn, exact: Results) -> dict[str, tuple[float, float]]:
    """The scales of rounding by which both errors of every tensor are judged.

    They are how far the result in float64 moves when inputs, weights and upstream gradients are
    off in the last bit of the case's dtype, as the root mean square of four such changes; and at
    least what sums of so many terms lose.
    """
    # of which the longest are over units or over frames
    terms = max(case.shape.H, case.shape.T * case.shape.B)
    eps = torch.finfo(case.dtype).eps
    # kernels for half a float sum in float32, and round less often
    half = eps > 1e-4
    part, least = (0.25, eps / 2) if half else (1.0, eps * (4 + terms**0.5 / 4))
    # by fewer a scale is too small by chance, now and then
    moved = [errors(exact_results(drawn.jittered(seed)), exact) for seed in range(1, 5)]

    def scale(name: str) -> tuple[float, float]:
        kinds = zip(*(each[name] for each in moved), strict=True)
        whole, entry = (part * math.hypot(*own) / len(moved) ** 0.5 for own in kinds)
        # the largest of many entries is off by more
        return max(whole, least), max(entry, 2 * least)

    return {name: scale(name) for name in exact}


def multiples(
    found: Results, exact: Results, scale: Mapping[str, tuple[float, float]]
) -> dict[str, float]:
    """The larger error of each tensor, as a multiple of its scale."""
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
    """Fills memory with NaN that torch allocates and does not write."""
    utils: Any = torch.utils.deterministic
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        utils.fill_uninitialized_memory,
    )
    # the algorithms themselves are of no concern here
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
    """The results of CUDA graphs that were captured on other data."""
    own = [leaf.clone() for leaf in drawn.leaves]
    for leaf in drawn.leaves:
        leaf.copy_(leaf.flip(-1))
    replay = way(partial(drawn.results, kernel))
    for leaf, value in zip(drawn.leaves, own, strict=True):
        leaf.copy_(value)
    return replay()


def raised(error: Exception) -> str:
    """An error in one line."""
    lines = str(error).splitlines() or [""]
    return f"raised {type(error).__name__}: {lines[0]}"


def _on_cpu(results: Results) -> Results:
    return {name: tensor.cpu() for name, tensor in results.items()}


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(*(each.flatten().view(torch.uint8) for each in (one, other)))
