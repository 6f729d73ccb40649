"""Passes captured as CUDA graphs, where calls of the same shapes repeat.

A graph replays its launches on its own memory: the arguments of a call are copied in, and the
results are copied to new tensors, so that no caller sees that memory.
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

from rnnorm.kernels.call import UncoveredError
from rnnorm.kernels.precision import float32_precision

#: which call of the same shapes is captured
SIGHTINGS = 3
#: how many of the last shapes are remembered
REMEMBERED = 16
#: environment variable: "0" for no graphs
SWITCH = "RNNORM_CUDA_GRAPHS"
# a capture takes about as long as this many replays save
_WORTH = 4

Run = Callable[..., list[Tensor]]
Capture = Callable[[Callable[[], list[Tensor]]], tuple[Callable[[], object], list[Tensor]]]


class _Graph(NamedTuple):
    """The graph of one pass of certain shapes.

    Attributes:
        given: the tensors that it reads.
        replay: runs the graph.
        results: the tensors that it writes.
    """

    given: list[Tensor]
    replay: Callable[[], object]
    results: list[Tensor]

    def __call__(self, arguments: Sequence[Any]) -> list[Tensor]:
        _copy(self.given, [a for a in arguments if _is_copied(a)])
        self.replay()
        results = [torch.empty_like(result) for result in self.results]
        _copy(results, self.results)
        return results


def _copy(to: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy tensors in one launch for each dtype."""
    # tensors of several dtypes would be copied one by one
    for dtype in {tensor.dtype for tensor in to}:
        pairs = [pair for pair in zip(to, values, strict=True) if pair[0].dtype == dtype]
        torch._foreach_copy_([pair[0] for pair in pairs], [pair[1] for pair in pairs])


def _record(capture: Capture, run: Run, arguments: Sequence[Any]) -> tuple[_Graph, list[Tensor]]:
    """Capture a pass; return its graph, and the results of a first run on the graph's memory."""
    # a tensor of inference mode could not be written outside it
    with torch.inference_mode(False), torch.no_grad():
        own = [a.clone() if _is_copied(a) else a for a in arguments]
    # compiling, loading and some allocations are not possible during a capture
    first = run(*own)
    replay, results = capture(partial(run, *own))
    return _Graph([tensor for tensor in own if _is_copied(tensor)], replay, results), first


class _Seen:
    """The number of calls of certain shapes, and their graph once it is captured."""

    def __init__(self) -> None:
        self.calls = 0
        self.graph: _Graph | None = None


class Graphs:
    """The graphs of one stream, which runs them one after another.

    Args:
        capture: captures a function; returns a function that replays it, and its results, which
            are the same tensors each time.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._seen: OrderedDict[Hashable, _Seen] = OrderedDict()
        self._lock = threading.Lock()
        self._replays = self._dropped = 0
        self._failed = False

    def run(self, run: Run, arguments: Sequence[Any]) -> list[Tensor]:
        """Return ``run(*arguments)``, captured at the third call of the same shapes, then replayed.

        Args:
            run: a function of tensors that changes none of them, and whose work on the GPU does not
                depend on their values. Its results are new tensors.
            arguments: tensors and other values; the values of integer tensors count as shapes.

        Warns:
            RuntimeWarning: if capturing fails; it is not tried again.
        """
        with self._lock:
            seen = self._look_up((run, *_modes(), *map(_form, arguments)))
            if seen.graph is not None:
                self._replays += 1
                return seen.graph(arguments)
            # where shapes repeat too seldom, a graph is dropped before it has paid off
            worth = self._replays >= _WORTH * self._dropped
            if seen.calls >= SIGHTINGS and worth and not self._failed:
                try:
                    seen.graph, results = _record(self._capture, run, arguments)
                    return results
                except UncoveredError:
                    # the call's own, which says nothing about captures
                    raise
                except RuntimeError as error:
                    self._failed = True
                    warnings.warn(
                        f"no more CUDA graphs, kernels are launched from the host: {error}",
                        RuntimeWarning,
                        stacklevel=2,
                    )
        return run(*arguments)

    def _look_up(self, key: Hashable) -> _Seen:
        """Count a call of certain shapes, and forget the shapes that were not used for longest."""
        seen = self._seen.setdefault(key, _Seen())
        seen.calls += 1
        self._seen.move_to_end(key)
        if len(self._seen) > REMEMBERED:
            _, oldest = self._seen.popitem(last=False)
            self._dropped += oldest.graph is not None
        return seen


def current_graphs(device: torch.device) -> Graphs | None:
    """Return the graphs of a GPU's current stream, None where passes are not captured.

    They are not captured on the CPU, in a stream that is being captured already, and with
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
    """Drop all graphs, and the memory that they hold."""
    with _lock:
        _streams.clear()


class _Cuda:
    """A capture of passes on one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def __call__(
        self, run: Callable[[], list[Tensor]]
    ) -> tuple[Callable[[], object], list[Tensor]]:
        # graphs share a pool, as results are copied before the next replay; torch frees it with
        # the last graph
        other = next(iter(self._graphs), None)
        pool = torch.cuda.graph_pool_handle() if other is None else other.pool()
        try:
            return self._capture(pool, run)
        except RuntimeError:
            self._end(pool)
            raise

    def _end(self, pool: Any) -> None:
        """Reset the state that torch keeps after a failed capture."""
        library: Any = torch._C
        # torch still allocates from the pool; some versions have no such function, or no need
        with suppress(AttributeError, RuntimeError):
            library._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
            library._cuda_releasePool(torch.cuda.current_device(), pool)
        # torch draws no random numbers until a capture succeeds
        with suppress(RuntimeError):
            pool = torch.cuda.graph_pool_handle()
            self._capture(pool, lambda: [torch.zeros(1, device=self._device)])

    def _capture(
        self, pool: Any, run: Callable[[], list[Tensor]]
    ) -> tuple[Callable[[], object], list[Tensor]]:
        graph = torch.cuda.CUDAGraph()
        # one capture at a time in a process; other threads may allocate meanwhile. A failed
        # capture leaves its stream current, so the outer context restores the stream
        with (
            _lock,
            torch.cuda.stream(self._side),
            torch.cuda.graph(graph, pool, self._side, capture_error_mode="thread_local"),
        ):
            results = run()
        self._graphs.add(graph)
        return graph.replay, results


def _is_copied(argument: Any) -> bool:
    """Tell whether a graph reads an argument from its own memory."""
    # resets and masks of dropout are bool, and new at each call
    return isinstance(argument, Tensor) and (
        argument.is_floating_point() or argument.dtype == torch.bool
    )


def _form(argument: Hashable) -> Hashable:
    """Return the part of an argument that must be equal in two calls of one graph."""
    if not isinstance(argument, Tensor):
        return argument
    if not _is_copied(argument):
        return tuple(argument.tolist())
    return tuple(argument.shape), argument.dtype


def _modes() -> tuple[Hashable, ...]:
    """Return the settings by which torch chooses a product's algorithm, or fills new memory."""
    matmul, deterministic = torch.backends.cuda.matmul, cast(Any, torch.utils.deterministic)
    return (
        float32_precision(),
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
        torch.are_deterministic_algorithms_enabled(),
        deterministic.fill_uninitialized_memory,
    )
