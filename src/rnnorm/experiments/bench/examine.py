"""One case on every kernel: is it right, with any memory, in every run, in CUDA graphs?"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnorm.experiments.bench.drawn import Case, Drawn, draw
from rnnorm.experiments.bench.layers import relative_difference
from rnnorm.experiments.bench.timing import captured, repeated, without_graphs
from rnnorm.kernels import dispatch

#: how much further than the reference a kernel may be from the result in float64
LIMIT = 4.0

Results = dict[str, Tensor]


class Verdict(NamedTuple):
    """On one kernel and case.

    Attributes:
        worst: the largest error of a tensor, as a multiple of the reference's.
        tensor: whose.
        faults: tensor and what is wrong with it.
    """

    worst: float
    tensor: str
    faults: list[tuple[str, str]]


def examine(case: Case, kernels: Iterable[str], device: torch.device) -> dict[str, Verdict]:
    """Compares every kernel that covers a case with the reference in float64 on the CPU.

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
    exact = drawn.to(torch.device("cpu"), torch.float64).results("reference")
    here = drawn.to(device, case.dtype)
    references = [_on_cpu(here.results("reference"))]
    graph = device.type == "cuda" and case.mode in ("dense", "evaluation")

    def ratios(found: Results) -> dict[str, float]:
        # the last bit of sums, of which the longest are over units or over frames
        terms = max(case.shape.H, case.shape.T * case.shape.B)
        least = torch.finfo(case.dtype).eps * max(2.0, terms**0.5 / 6)
        return {
            name: relative_difference(found[name], true)
            / max(least, *(relative_difference(r[name], true) for r in references))
            for name, true in exact.items()
        }

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
        found = [first, runs[0]]
        if len(references) == 1 and any(not r <= LIMIT for f in found for r in ratios(f).values()):
            # one draw of rounding says little, so two more are asked before a kernel is blamed
            more = (drawn.jittered(seed).to(device, case.dtype) for seed in (1, 2))
            references += [_on_cpu(each.results("reference")) for each in more]
        verdicts[kernel] = _verdict(exact, found, ratios, runs, replays)
    return verdicts


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
                off = relative_difference(each[name], exact[name])
                faults.setdefault(
                    name, f"is off by {off:.1e}, {ratio:.3g} times the reference's error"
                )
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
