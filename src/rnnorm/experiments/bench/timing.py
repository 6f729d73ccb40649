"""Time and memory of several functions side by side, on a machine that may be busy."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from rnnorm.kernels.triton import graphs

Clock = Literal["wall", "cpu", "cuda"]
Result = TypeVar("Result")


class Timing(NamedTuple):
    """What one function took.

    Attributes:
        seconds: the median of its runs.
        ratio: the median, over the rounds, of its time to that of the first function.
        spread: the first and the third quartile of the same.
        rounds: how many runs there were.
    """

    seconds: float
    ratio: float
    spread: tuple[float, float]
    rounds: int

    def __str__(self) -> str:
        low, high = self.spread
        return f"{self.ratio:5.2f} [{low:.2f} {high:.2f}]"


def check_seconds(seconds: float) -> None:
    """Refuse a time that measures nothing, or for ever.

    Raises:
        ValueError: ``seconds`` is not positive and finite.
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
    """Run functions in turn, round after round.

    Args:
        steps: the functions by name; ratios are to the first.
        seconds: how long to go on, all together.
        clock: ``"wall"``, ``"cpu"`` for the time of all threads of this process, or ``"cuda"`` for
            the time between two events of the current stream.
        fewest: rounds to do even if they last longer.

    Returns:
        the result of each.

    Raises:
        ValueError: ``seconds`` is not positive and finite.
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
        ratios = [a / b for a, b in zip(own, first, strict=True)]
        # one round has no quartiles
        low, middle, high = statistics.quantiles(
            ratios * 2 if rounds == 1 else ratios, n=4, method="inclusive"
        )
        return Timing(statistics.median(own), middle, (low, high), rounds)

    return {name: timing(own) for name, own in times.items()}


def _by(now: Callable[[], float], step: Callable[[], object]) -> float:
    begin = now()
    step()
    return now() - begin


def _by_events(step: Callable[[], object]) -> float:
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
    """A step as a CUDA graph: a call runs it again on the tensors that it read, into the same."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        # what is compiled, looked up or allocated once
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()

    def replay() -> Result:
        graph.replay()
        return result

    return replay


def repeated(step: Callable[[], Result]) -> Callable[[], Result]:
    """A step, run so often that kernels replay graphs of their own."""
    graphs.forget()
    for _ in range(graphs.SIGHTINGS):
        step()
    return step


def launched(step: Callable[[], Result]) -> Callable[[], Result]:
    """A step, of which kernels replay no graphs of their own."""

    def run() -> Result:
        with without_graphs():
            return step()

    return run


@contextmanager
def without_graphs() -> Iterator[None]:
    """Kernels replay no graphs of their own."""
    before = os.environ.get(graphs.SWITCH)
    os.environ[graphs.SWITCH] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[graphs.SWITCH]
        else:
            os.environ[graphs.SWITCH] = before


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Let torch use so many threads, as many as before if None.

    Raises:
        ValueError: ``count`` is less than 1, or more than this machine has cores.
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


def kept_bytes(layer: nn.RNNBase, x: Tensor) -> int:
    """Bytes of resident memory that a call of a layer adds and backward needs (Linux alone).

    What is reserved and never touched does not count; the output and what malloc or the kernels
    keep for the next call do. Measure each layer in a process of its own.

    Args:
        layer: of ours or of torch.nn.
        x: its input, dense.

    Raises:
        OSError: there is no ``/proc``.
    """
    # threads and libraries are loaded before
    layer(x[:1])
    before = _resident("VmRSS")
    result = layer(x)
    after = _resident("VmRSS")
    del result
    return after - before


def peak_bytes(layer: nn.RNNBase, x: Tensor | PackedSequence) -> int:
    """Bytes by which a training step raises the memory of this process at most (Linux alone).

    That is what it needs beside weights and input, gradients included. What malloc keeps from an
    earlier step does not count: measure each layer in a process of its own.

    Args:
        layer: of ours or of torch.nn.
        x: its input.

    Raises:
        OSError: there is no ``/proc``.
    """
    # sets the peak back to what there is now
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    output = layer(x)[0]
    torch.autograd.backward((output.data if isinstance(output, PackedSequence) else output).sum())
    return _resident("VmHWM") - before


def _resident(name: str) -> int:
    """Memory of this process in bytes, now (``VmRSS``) or at its peak (``VmHWM``)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))
