"""Passes captured as CUDA graphs, where calls of the same shapes repeat.

A graph replays its launches on memory of its own: what a call gives is copied in, and what comes
out is copied to new tensors, so that nobody sees that memory.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, cast
from weakref import WeakSet

import torch
from torch import Tensor

#: how often the same shapes come before they are captured
SIGHTINGS = 3
#: how many shapes are remembered, the last ones
REMEMBERED = 16
#: environment variable: "0" for no graphs
SWITCH = "RNNORM_CUDA_GRAPHS"
# a capture takes about as long as so many replays save
_WORTH = 4

Run = Callable[..., list[Tensor]]
Capture = Callable[[Callable[[], list[Tensor]]], tuple[Callable[[], object], list[Tensor]]]


class _Graph(NamedTuple):
    """One pass of certain shapes.

    Attributes:
        given: what it reads.
        replay: runs it.
        results: what it writes.
    """

    given: list[Tensor]
    replay: Callable[[], object]
    results: list[Tensor]

    def __call__(self, arguments: Sequence[Any]) -> list[Tensor]:
        torch._foreach_copy_(self.given, [a for a in arguments if _moves(a)])
        self.replay()
        results = [torch.empty_like(result) for result in self.results]
        torch._foreach_copy_(results, self.results)
        return results


def _record(capture: Capture, run: Run, arguments: Sequence[Any]) -> tuple[_Graph, list[Tensor]]:
    """The graph of a pass, and the results of a first run on its memory."""
    own = [a.clone() if _moves(a) else a for a in arguments]
    # compiles, loads and allocates what cannot be while a graph is captured
    first = run(*own)
    replay, results = capture(partial(run, *own))
    return _Graph([tensor for tensor in own if _moves(tensor)], replay, results), first


class _Seen:
    """Calls of certain shapes."""

    def __init__(self) -> None:
        self.calls = 0
        self.graph: _Graph | None = None


class Graphs:
    """The graphs of one stream, on which they follow one another.

    Args:
        capture: runs what it is given once, and returns what replays it and its results, which
            are the same tensors each time.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._seen: OrderedDict[Hashable, _Seen] = OrderedDict()
        self._lock = threading.Lock()
        self._replays = self._dropped = 0
        self._failed = False

    def run(self, run: Run, arguments: Sequence[Any]) -> list[Tensor]:
        """``run(*arguments)``, captured at the third call of the same shapes, replayed thereafter.

        Args:
            run: a function of tensors, which changes none of them; what it does on the GPU depends
                on no value of these. Its results are new tensors.
            arguments: tensors, of which those of whole numbers count as shapes, and other values.

        Warns:
            RuntimeWarning: capturing failed, and is not tried again.
        """
        with self._lock:
            seen = self._look_up((run, *_modes(), *map(_form, arguments)))
            if seen.graph is not None:
                self._replays += 1
                return seen.graph(arguments)
            # where shapes come again too seldom, a graph is dropped before it has paid
            worth = self._replays >= _WORTH * self._dropped
            if seen.calls >= SIGHTINGS and worth and not self._failed:
                try:
                    seen.graph, results = _record(self._capture, run, arguments)
                    return results
                except RuntimeError as error:
                    self._failed = True
                    warnings.warn(
                        f"no more CUDA graphs, kernels are launched from the host: {error}",
                        RuntimeWarning,
                        stacklevel=2,
                    )
        return run(*arguments)

    def _look_up(self, key: Hashable) -> _Seen:
        seen = self._seen.setdefault(key, _Seen())
        seen.calls += 1
        self._seen.move_to_end(key)
        if len(self._seen) > REMEMBERED:
            _, oldest = self._seen.popitem(last=False)
            self._dropped += oldest.graph is not None
        return seen


def current_graphs(device: torch.device) -> Graphs | None:
    """The graphs of a GPU's current stream; None where there are to be none.

    These are the CPU, a stream that is being captured already, and everywhere with
    ``RNNORM_CUDA_GRAPHS=0``.
    """
    if device.type != "cuda" or os.environ.get(SWITCH) == "0":
        return None
    if torch.cuda.is_current_stream_capturing():
        return None
    stream = torch.cuda.current_stream(device).cuda_stream
    with _lock:
        if (device.index, stream) not in _streams:
            _streams[device.index, stream] = Graphs(_Cuda(device))
        return _streams[device.index, stream]


_streams: dict[tuple[int | None, int], Graphs] = {}
_lock = threading.Lock()


def forget() -> None:
    """Drops all graphs, and the memory that they hold."""
    with _lock:
        _streams.clear()


class _Cuda:
    """Captures passes on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def __call__(
        self, run: Callable[[], list[Tensor]]
    ) -> tuple[Callable[[], object], list[Tensor]]:
        # one pool of memory will do, as a graph's results are copied before the next is replayed.
        # Torch gives it up with its last graph, and refuses it from then on
        other = next(iter(self._graphs), None)
        pool = torch.cuda.graph_pool_handle() if other is None else other.pool()
        try:
            return self._capture(pool, run)
        except RuntimeError:
            self._end(pool)
            raise

    def _end(self, pool: Any) -> None:
        """Ends what torch goes on with after a capture that failed."""
        library: Any = torch._C
        # to allocate from the pool; what ended that may have no name in a version, or no need
        with suppress(AttributeError, RuntimeError):
            library._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
            library._cuda_releasePool(torch.cuda.current_device(), pool)
        # not to draw random numbers, until a capture has ended well
        with suppress(RuntimeError):
            anew = torch.cuda.graph_pool_handle()
            self._capture(anew, lambda: [torch.zeros(1, device=self._device)])

    def _capture(
        self, pool: Any, run: Callable[[], list[Tensor]]
    ) -> tuple[Callable[[], object], list[Tensor]]:
        graph = torch.cuda.CUDAGraph()
        # one at a time in a process. Other threads, such as those of a data loader, may allocate
        # meanwhile. Where a capture fails torch leaves its stream on, so it is entered here too
        with (
            _lock,
            torch.cuda.stream(self._side),
            torch.cuda.graph(graph, pool, self._side, capture_error_mode="thread_local"),
        ):
            results = run()
        self._graphs.add(graph)
        return graph.replay, results


def _moves(argument: Any) -> bool:
    return isinstance(argument, Tensor) and argument.is_floating_point()


def _form(argument: Hashable) -> Hashable:
    """What of an argument two calls must have in common."""
    if not isinstance(argument, Tensor):
        return argument
    if not _moves(argument):
        return tuple(argument.tolist())
    return tuple(argument.shape), argument.dtype


def float32_precision() -> str:
    """As torch says it of its products on a GPU."""
    matmul = torch.backends.cuda.matmul
    # before torch 2.9 it had one name
    new = hasattr(matmul, "fp32_precision")
    return str(matmul.fp32_precision) if new else torch.get_float32_matmul_precision()


def _modes() -> tuple[Hashable, ...]:
    """What torch reads when it chooses a product's algorithm, or fills new memory."""
    matmul, deterministic = torch.backends.cuda.matmul, cast(Any, torch.utils.deterministic)
    return (
        float32_precision(),
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
        torch.are_deterministic_algorithms_enabled(),
        deterministic.fill_uninitialized_memory,
    )
