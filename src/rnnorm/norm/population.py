"""Population statistics of one site: estimates per time step, and which one a step uses."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from rnnorm.norm.moments import Moments
from rnnorm.norm.spec import BatchNorm
from rnnorm.tracing import known, steps_may_vary, symbolic, uncompiled, unobserved

#: names of a population's buffers
BUFFERS = ("mean", "var", "rows", "num_batches_tracked")
# deep copies, which grow along; kept outside the module, so that no copy is pickled with it
_copies: WeakKeyDictionary[Population, list[ref[Population]]] = WeakKeyDictionary()


def _out_of_memory(error: RuntimeError) -> bool:
    """Tell whether memory is too small for a tensor; on a CPU only torch's message says so."""
    messages = ("DefaultCPUAllocator", "Storage size calculation overflowed", "out of memory")
    return isinstance(error, torch.OutOfMemoryError) or any(m in str(error) for m in messages)


class Population(nn.Module):
    """Running mean and unbiased variance of one site, one row for each time step.

    Buffers: ``mean`` and ``var`` ``(horizon, features)``, float32 or wider; ``rows`` and
    ``num_batches_tracked`` ``(horizon,)``, int64.

    Args:
        features: width of the site.
        norm: the spec that holds momentum, horizon and min_rows.
        shared: whether all steps share one row.
        device: device of the buffers.
        dtype: dtype of the layer; moments are kept in float32 or wider.
    """

    mean: Tensor
    var: Tensor
    rows: Tensor
    num_batches_tracked: Tensor
    # whether a deep copy exists; a class attribute, since old pickles lack the instance one
    _followed = False
    # whether copies stay as they are while it grows, since its new rows may be dropped again
    _grows_alone = False
    # whether every row serves its own step, with a count or without
    _filled = False
    # number of rows that ``resize`` left last: fewer are there only if others took them away
    _resized_to = 0

    def __init__(
        self,
        features: int,
        norm: BatchNorm,
        *,
        shared: bool,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.shared = shared
        self.horizon = 1 if shared else norm.horizon
        self.momentum = norm.momentum
        self.min_rows = norm.min_rows
        self._checked = False
        # set on the instance too, where torch.compile looks
        self._followed = False
        wide = torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)
        fresh = self._fresh(self.horizon or 1, features, device, wide)
        for name, value in zip(BUFFERS, fresh, strict=True):
            self.register_buffer(name, value)

    @staticmethod
    def _fresh(
        rows: int, features: int, device: torch.device | str | None, dtype: torch.dtype
    ) -> tuple[Tensor, ...]:
        return (
            torch.zeros(rows, features, device=device, dtype=dtype),
            torch.ones(rows, features, device=device, dtype=dtype),
            torch.zeros(rows, device=device, dtype=torch.int64),
            torch.zeros(rows, device=device, dtype=torch.int64),
        )

    def reset_parameters(self) -> None:
        """Forget every estimate; tools that materialise meta modules call this method."""
        self.reset_running_stats()

    def reset_running_stats(self) -> None:
        """Forget every estimate."""
        self._forget(torch.ones_like(self.rows, dtype=torch.bool))
        self._checked = False

    def forget_rare_steps(self) -> None:
        """Forget steps with fewer rows than four times ``min_rows`` and than the first step.

        Few sequences may be much alike: the statistics of an earlier step fit better.
        """
        self._forget(self.rows < self.rows[0].clamp(max=4 * self.min_rows))

    def _forget(self, steps: Tensor) -> None:
        fresh = self._fresh(len(self), self.mean.size(1), self.mean.device, self.mean.dtype)
        for name, value in zip(BUFFERS, fresh, strict=True):
            buffer = getattr(self, name)
            which = steps.view(-1, *[1] * (buffer.dim() - 1))
            buffer.copy_(torch.where(which, value, buffer))

    def __deepcopy__(self, memo: dict[int, Any]) -> Population:
        """Return a copy that grows with this population: averaged models need equal shapes."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self.__dict__, memo))  # type: ignore[no-untyped-call]
        twin._followed, self._followed, twin._grows_alone = False, True, False
        twins = _copies.setdefault(self, [])
        twins.append(ref(twin, twins.remove))
        return twin

    def resize(self, rows: int) -> None:
        """Keep the first ``rows`` rows, and add rows without a count if there are fewer.

        Deep copies grow to as many rows, but lose none.
        """
        if self._followed and not self._grows_alone:
            # a compiled graph would keep today's copies and number of rows
            uncompiled(self._grow_copies)(rows)
        if rows == len(self):
            # the buffers may be shared with another module
            self._resized_to = rows
            return
        # buffers made in inference mode could not be updated outside it
        with torch.inference_mode(False):
            more = self._fresh(
                max(0, rows - len(self)), self.mean.size(1), self.mean.device, self.mean.dtype
            )
            # all are made before one is set, as memory may run out
            resized = [
                torch.cat([getattr(self, name)[:rows], extra])
                for name, extra in zip(BUFFERS, more, strict=True)
            ]
            for name, buffer in zip(BUFFERS, resized, strict=True):
                setattr(self, name, buffer)
        self._resized_to = rows

    def _grow_copies(self, rows: int) -> None:
        for twin in [each() for each in _copies.get(self, [])]:
            if twin is not None and len(twin) < rows:
                twin.resize(rows)

    def grow(self, steps: int, agreed: bool = False) -> None:
        """Add rows until ``steps`` steps, or the horizon, have one each.

        Args:
            steps: number of steps.
            agreed: whether all processes of torch.distributed ask for the same number.

        Raises:
            RuntimeError: if the buffers would have to grow in one of several processes of
                torch.distributed, where the ranks would end up with different shapes, or in a
                replica of torch.nn.DataParallel, or if the CPU's memory runs out.
            torch.OutOfMemoryError: if a GPU's memory runs out.

        Warns:
            RuntimeWarning: if rows that were added before are gone.
        """
        length, needed = self._buffer("num_batches_tracked").size(0), steps
        if self.horizon is not None and needed > self.horizon:
            needed = self.horizon
        if needed <= length:
            return
        if length < self._resized_to:
            warnings.warn(
                f"the statistics of {self._resized_to - length} steps are lost: the buffers that "
                "had grown were exchanged for shorter ones, as torch.func.functional_call and "
                "TorchRL's losses do after each call: give norm.horizon a number",
                RuntimeWarning,
                stacklevel=2,
            )
        if getattr(self, "_is_replica", False):
            raise RuntimeError(
                f"a population has {len(self)} steps and would have to grow to {needed} under "
                "torch.nn.DataParallel, which discards its replicas: give norm.horizon a number, "
                "or train on the longest sequence once before"
            )
        distributed = torch.distributed
        together = distributed.is_available() and distributed.is_initialized()
        if self.horizon is None and together and not agreed and distributed.get_world_size() > 1:
            raise RuntimeError(
                f"norm.horizon must be a number under torch.distributed, got None: this sequence "
                f"has {steps} steps, and buffers that grow differ from rank to rank; or call "
                "rnnorm.synchronize(model)"
            )
        try:
            self.resize(needed)
        except RuntimeError as error:
            if not _out_of_memory(error):
                raise
            raise type(error)(
                f"no memory for statistics of {needed} steps, which are step plus the frames of "
                f"this call: give a smaller step, or a number as norm.horizon ({error})"
            ) from error

    def at(self, steps: Tensor) -> Moments:
        """Return the mean and variance used at the given steps, ``(*steps.shape, F)`` each.

        A step uses its own row or, if that row has no count, the last row before it with a count,
        or else the first row with one. If no row has a count, each step uses its own row: mean 0
        and variance 1, or what an average of models has written there without the counts.

        Args:
            steps: int64 indices, of any shape.
        """
        # read once, the counts first: they are set last where another thread lets a copy grow
        counts = self._buffer("num_batches_tracked")
        mean, var = self._buffer("mean"), self._buffer("var")
        counted = counts > 0
        counted = counted | ~counted.any()
        row = torch.arange(len(counts), device=steps.device) * counted
        row = row.cummax(0).values.clamp(min=counted.int().argmax())
        serving = row[steps.clamp(max=len(counts) - 1)]
        # embedding copies whole rows, indexing goes element by element
        mean, var = (nn.functional.embedding(serving, moment) for moment in (mean, var))
        return mean, var

    def consecutive(self, first: int | Tensor, steps: int) -> Moments:
        """Return the mean and variance used at consecutive steps, ``(R, 1, F)`` each.

        R is at most ``steps``. All steps from the R-th on use the last row, so that a long sequence
        costs no more than the rows that exist. In traced code, which may run with another number
        of steps, R is ``steps`` or 1.

        Args:
            first: index of the first step, or ``(B,)`` int64 for rows at different ages: the
                result is then ``(R, B, F)``.
            steps: number of steps.
        """
        if self.shared:
            return _until_backward(self._buffer("mean"), self._buffer("var"))
        # reading a number from a GPU would wait for it
        cpu = self._buffer("mean").is_cpu and unobserved([self._buffer("mean")])
        if isinstance(first, int) and cpu:
            rows = self.own_rows(first, steps)
            if rows is not None:
                return _until_backward(*self.rows_of(*rows, ("mean", "var")))
        offset = first.to(self.mean.device) if isinstance(first, Tensor) else first
        steps = self._steps_with_rows(first, steps)
        return self.at(torch.arange(steps, device=self.mean.device).unsqueeze(1) + offset)

    def own_rows(
        self, first: int, steps: int, batches: Sequence[int] | None = None
    ) -> tuple[int, int] | None:
        """Return the first row that consecutive steps use, and the end, if they use rows in order.

        Args:
            first: index of the first step.
            steps: number of steps.
            batches: the numbers of ``num_batches_tracked``, if they are at hand.

        Returns:
            None if one of these rows has no count, so another row serves its step.
        """
        counts = self._buffer("num_batches_tracked")
        length, stop = len(counts) if batches is None else len(batches), first + steps
        # comparisons, which are faster than min
        start, stop = first if first < length else length - 1, stop if stop < length else length
        if not (self.shared or self._filled):
            if batches is None:
                batches = (counts if stop - start == length else counts[start:stop]).tolist()
            else:
                batches = batches[start:stop]
            if not all(batches):
                return None
        return start, stop

    def _steps_with_rows(self, first: int | Tensor, steps: int) -> int:
        """Count the steps that need a row of their own; the last such row serves the others."""
        if steps_may_vary(steps):
            return steps
        ages = first if isinstance(first, Tensor) else None
        last, earliest = len(self) - 1, first if isinstance(first, int) else 0
        # reading a number from a GPU would wait for it
        if self._buffer("mean").is_cpu and unobserved([self._buffer("mean"), ages]):
            counted = self._buffer("num_batches_tracked").nonzero()
            last = int(counted[-1]) if len(counted) else last
            earliest = int(ages.min()) if ages is not None and len(ages) else earliest
        return min(steps, max(1, last + 1 - earliest))

    def _buffer(self, name: str) -> Tensor:
        """Return a buffer without the slow attribute look-up of a module."""
        return self._buffers[name]  # type: ignore[return-value]

    def rows_of(self, start: int, stop: int, names: Iterable[str] = BUFFERS) -> list[Tensor]:
        """Return rows ``start`` to ``stop`` of buffers: views, or the buffers if those are all."""
        own = [self._buffer(name) for name in names]
        # another thread may let some of them grow meanwhile
        return [each if stop - start == len(each) else each[start:stop] for each in own]

    def first_use_without_count(self) -> bool:
        """Tell whether there is no estimate yet, the first time that this method is called."""
        if self._checked or symbolic():
            return False
        if (counted := known(self.num_batches_tracked.any())) is None:
            return False
        self._checked = True
        return not counted

    def differs_by_step(self) -> bool:
        """Tell whether more than one step has an estimate; False in traced and symbolic code."""
        several = not self.shared and len(self) > 1 and not symbolic()
        return several and (known((self.num_batches_tracked > 0).sum()) or 0) > 1

    def __len__(self) -> int:
        # set last where buffers grow, so that another thread finds as many rows in the others
        return self._buffer("num_batches_tracked").size(0)

    def extra_repr(self) -> str:
        """Return the width and the number of steps with a row."""
        return f"features={self.mean.size(1)}, steps={'shared' if self.shared else len(self)}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Population:
        def keep_wide(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            narrow = moved.dtype in (torch.half, torch.bfloat16)
            # counts stay integers under .type(dtype), too
            changed = narrow if tensor.is_floating_point() else moved.dtype != tensor.dtype
            return tensor.to(moved.device) if changed else moved

        return super()._apply(keep_wide, recurse)  # type: ignore[no-any-return,no-untyped-call]

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        stored = state_dict.get(f"{prefix}mean")
        one_row, steps = (1, self.mean.size(1)), 0
        if isinstance(stored, Tensor) and stored[:1].shape == one_row:
            steps = len(stored)
        if self.shared and steps > 1:
            error_msgs: list[str] = args[-1]
            error_msgs.append(
                f"{prefix}mean must have one row, which all steps share, got those of {steps} "
                "steps: build the layer with the norm of the checkpoint, such as one with "
                "population='per_step', or take the populations out of the checkpoint, load it "
                "with strict=False, and call rnnorm.update_bn"
            )
            return
        # a checkpoint with another horizon loads: the module's own horizon limits the rows kept
        if steps and not self.shared:
            self.resize(min(steps, self.horizon or steps))
            state_dict = state_dict | {
                prefix + name: state_dict[prefix + name][: len(self)]
                for name in BUFFERS
                if prefix + name in state_dict and steps > len(self)
            }
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        for name in ("mean", "var"):
            moment = getattr(self, name)
            setattr(self, name, moment.to(torch.promote_types(moment.dtype, torch.float32)))
        # load_state_dict(assign=True) takes over the dtypes of the checkpoint
        for name in ("rows", "num_batches_tracked"):
            setattr(self, name, getattr(self, name).to(torch.int64))
        self.resize(self.horizon or len(self))
        self._checked = False


def look_up(
    populations: Mapping[str, Population], first: int | Tensor, steps: int
) -> dict[str, Moments]:
    """Return the mean and variance of each site at consecutive steps, as ``consecutive`` does."""
    return {site: each.consecutive(first, steps) for site, each in populations.items()}


def _until_backward(mean: Tensor, var: Tensor) -> Moments:
    """Return rows ``(R, 1, F)``: views, or copies where a backward pass may read them later."""
    mean, var = mean.unsqueeze(1), var.unsqueeze(1)
    # a training step may change the buffers before backward reads them
    return (mean.clone(), var.clone()) if torch.is_grad_enabled() else (mean, var)
