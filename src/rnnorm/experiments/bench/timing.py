"""Measure the time of several functions side by side, on a machine that may be busy."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Literal, NamedTuple, TypeVar

import torch

from rnnorm.kernels import cuda_graphs

Clock = Literal["wall", "cpu", "cuda"]
Result = TypeVar("Result")


class Timing(NamedTuple):
    """The time of one function.

    Attributes:
        seconds: the median of its runs.
        ratio: the median, over the rounds, of its time to that of the first function.
        spread: the first and the third quartile of these ratios.
        rounds: number of runs.
    """

    seconds: float
    ratio: float
    spread: tuple[float, float]
    rounds: int

    def __str__(self) -> str:
        low, high = self.spread
        return f"{self.ratio:5.2f} [{low:.2f} {high:.2f}]"


def check_seconds(seconds: float) -> None:
    """Check that a measuring time is positive and finite.

    Raises:
        ValueError: if ``seconds`` is not positive and finite.
    """
    if not 0 < seconds < math.inf:
        raise ValueError(f"seconds must be positive and finite, got {seconds}")


def interleave(
    steps: Mapping[str, Callable[[], object]],
    seconds: float,
    *,
    clock: Clock = "wall",
    fewest: int = 5,
) -> dict[str, Timing]:
    """Time functions in turn, round after round.

    Args:
        steps: the functions by name; ratios are to the first.
        seconds: how long to measure, all functions together.
        clock: ``"wall"``, ``"cpu"`` for the time of all threads of this process, or ``"cuda"`` for
            the time between two events of the current stream.
        fewest: rounds to do even if they last longer than ``seconds``.

    Returns:
        The timing of each function by name.

    Raises:
        ValueError: if ``seconds`` is not positive and finite.
    """
    check_seconds(seconds)
    took = _CLOCKS[clock]
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    start, rounds = time.perf_counter(), 0
    while rounds < fewest or time.perf_counter() - start < seconds:
        rounds += 1
        for name, step in steps.items():
            times[name].append(took(step))
    first = next(iter(times.values()))

    def timing(own: list[float]) -> Timing:
        """Summarise the times of one function."""
        ratios = [a / b for a, b in zip(own, first, strict=True)]
        # quartiles need two values
        low, middle, high = statistics.quantiles(
            ratios * 2 if rounds == 1 else ratios, n=4, method="inclusive"
        )
        return Timing(statistics.median(own), middle, (low, high), rounds)

    return {name: timing(own) for name, own in times.items()}


def _by(now: Callable[[], float], step: Callable[[], object]) -> float:
    """Time a step in seconds of the clock ``now``."""
    begin = now()
    step()
    return now() - begin


def _by_events(step: Callable[[], object]) -> float:
    """Time a step in seconds between two CUDA events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    step()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


_CLOCKS: Mapping[Clock, Callable[[Callable[[], object]], float]] = {
    "wall": partial(_by, time.perf_counter),
    "cpu": partial(_by, time.process_time),
    "cuda": _by_events,
}


def captured(step: Callable[[], Result]) -> Callable[[], Result]:
    """Capture a step as a CUDA graph and return its replay, on the same tensors."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        # warm up: a capture must not contain compilation or first allocations
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()

    def replay() -> Result:
        """Replay the graph and return the tensors that it writes."""
        graph.replay()
        return result

    return replay


def repeated(step: Callable[[], Result]) -> Callable[[], Result]:
    """Run a step so often that kernels replay graphs of their own, and return the step."""
    cuda_graphs.forget()
    for _ in range(cuda_graphs.SIGHTINGS):
        step()
    return step


def launched(step: Callable[[], Result]) -> Callable[[], Result]:
    """Wrap a step so that kernels replay no graphs of their own."""

    def run() -> Result:
        """Run the step without graphs."""
        with without_graphs():
            return step()

    return run


@contextmanager
def without_graphs() -> Iterator[None]:
    """Keep kernels from replaying graphs of their own."""
    before = os.environ.get(cuda_graphs.SWITCH)
    os.environ[cuda_graphs.SWITCH] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[cuda_graphs.SWITCH]
        else:
            os.environ[cuda_graphs.SWITCH] = before


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Set torch's number of threads to ``count``, or leave it unchanged if None.

    Raises:
        ValueError: if ``count`` is less than 1, or more than this machine has cores.
    """
    before, cores = torch.get_num_threads(), os.cpu_count() or 1
    if count is not None:
        if not 1 <= count <= cores:
            raise ValueError(f"threads must be from 1 to {cores}, the machine's cores, got {count}")
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
