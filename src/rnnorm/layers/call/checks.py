"""Checks of the arguments of a call: input, states, steps, resets, devices."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from rnnorm.cells.cell import State
from rnnorm.kernels.dispatch import Kernel
from rnnorm.layers.call.autocast import autocast_dtype
from rnnorm.layers.call.sorted_batch import count_rows, refuse_lengths
from rnnorm.tracing import holds, jit_tracing, values_unknown

if TYPE_CHECKING:
    from rnnorm.layers.sequence_layer import SequenceLayer

#: largest ``step``: int64 has to hold it plus the number of steps of a sequence
LAST_STEP = 2**62


def states_of(hx: Any, count: int) -> State:
    """Return the states in a user's ``hx``, which are ``count`` if it fits, and none for None."""
    return () if hx is None else tuple(hx) if count > 1 else (hx,)


def as_hx(state: State) -> Any:
    """Return states as torch.nn takes and returns them: a tuple, or the only one."""
    return state if len(state) > 1 else state[0]


class Call(NamedTuple):
    """The checked arguments of a call.

    Args:
        data: the input with a dimension of rows, or the frames of a PackedSequence.
        sizes: ``batch_sizes`` of a PackedSequence.
        rows: number of rows.
        state: the given states ``(D * num_layers, rows, ·)``, empty without.
        step: index of the first frame.
        reset: where rows begin anew, bool in the layout of ``data``; None without.
        packed: whether the input is a PackedSequence.
        batched: whether the input has a dimension of rows.
    """

    data: Tensor
    sizes: Tensor | None
    rows: int
    state: State
    step: int | Tensor
    reset: Tensor | None
    packed: bool
    batched: bool


def checked_call(
    module: SequenceLayer,
    kernel: Kernel,
    input: Tensor | PackedSequence,
    hx: Any,
    lengths: Tensor | Sequence[int] | None,
    step: int | Tensor | None,
    reset: Tensor | PackedSequence | None,
) -> Call:
    """Check the forms of a call's arguments, ``step`` and ``reset``.

    Raises:
        ValueError: if ``lengths`` are given with other input than a 3-D batch; if ``reset`` is
            given with a nonzero ``step`` in training with statistics over rows; as
            ``checked_step``.
        RuntimeError, TypeError: as torch.nn, ``check_traced``, ``checked_step`` and
            ``_checked_reset``.
    """
    packed = isinstance(input, PackedSequence)
    data: Tensor = input.data if packed else input  # type: ignore[assignment]
    dim = data.dim()
    batched = packed or dim == 3
    if lengths is not None:
        refuse_lengths("input", input)
    states = len(module.cell.states)
    given = states_of(hx, states)
    fits = (packed or dim in (2, 3)) and (hx is None or len(given) == states)
    if not fits or any(not isinstance(s, Tensor) or s.dim() != 2 + batched for s in given):
        module._refuse(input, hx)
    # under torch.jit.trace the reference kernel records the example's sizes
    kept = input if packed and kernel.name == "reference" else None
    check_traced(kernel, module.training and kernel.layer is not None, lengths, kept)
    reset = None if reset is None else _checked_reset(reset, input, module.batch_first)
    rows_at = 0 if module.batch_first else 1
    if not batched:
        data = data.unsqueeze(rows_at)
        reset = None if reset is None else reset.unsqueeze(rows_at)
    rows = count_rows(input, given) if packed else data.size(rows_at)  # type: ignore[arg-type]
    statistics = module.training and module._has_statistics()
    step = checked_step(0 if step is None else step, rows, statistics, module.bidirectional)
    if statistics and reset is not None and step:
        raise ValueError(
            f"step must be 0 with reset in training with batch normalisation, got {step}: pieces "
            "after a reset begin at step 0, and rows at different ages have no common statistics; "
            "leave step out, as windows of a longer sequence do in training"
        )
    step = step.to(data.device) if isinstance(step, Tensor) else step
    sizes = input.batch_sizes if packed else None  # type: ignore[union-attr]
    state = given if batched else tuple([s.unsqueeze(1) for s in given])
    # a batch without rows has nothing that could begin anew
    return Call(data, sizes, rows, state, step, reset if rows else None, packed, batched)


def _checked_reset(
    reset: Tensor | PackedSequence, input: Tensor | PackedSequence, batch_first: bool
) -> Tensor:
    """Check ``reset`` and return it as a tensor in the layout of the input's frames.

    Raises:
        TypeError: if it is not a bool tensor, or of the input and ``reset`` one alone is a
            PackedSequence.
        RuntimeError: if it is not on the input's device, or has another shape or layout.
    """
    packed = isinstance(input, PackedSequence)
    if not isinstance(reset, PackedSequence if packed else Tensor):
        accepted = "a PackedSequence, as the input is," if packed else "a bool tensor"
        raise TypeError(f"reset must be {accepted} or None, got {type(reset).__name__}")
    frames: Tensor = input.data if packed else input  # type: ignore[assignment]
    data: Tensor = reset.data if packed else reset  # type: ignore[assignment]
    if data.dtype != torch.bool:
        raise TypeError(f"reset must be bool, True where a row begins anew, got {data.dtype}")
    if data.device != frames.device:
        raise RuntimeError(
            f"reset must be on the device of the input, {frames.device}, got {data.device}"
        )
    shape = tuple(frames.shape[:-1])
    if data.shape != shape:
        names = ("(B, T)" if batch_first else "(T, B)") if len(shape) == 2 else "(T,)"
        names = "(frames,)" if packed else names
        raise RuntimeError(
            f"reset must have the shape {names} of the input, {shape}, got {tuple(data.shape)}"
        )
    expected = "reset must be packed as the input is, with its batch_sizes and sorted_indices"
    if packed and not _packed_alike(reset, input, expected):  # type: ignore[arg-type]
        raise RuntimeError(f"{expected}, got others")
    return data


def _packed_alike(one: PackedSequence, other: PackedSequence, expected: str) -> bool:
    """Tell whether two PackedSequences have one layout; traced code checks it when it runs."""
    if one.batch_sizes.shape != other.batch_sizes.shape:
        return False
    alike = holds((one.batch_sizes == other.batch_sizes).all(), expected)
    orders = [order for order in (one.sorted_indices, other.sorted_indices) if order is not None]
    if not alike or not orders:
        return alike
    # without indices the rows were given in order
    in_order = torch.arange(orders[0].size(0), device=orders[0].device)
    return holds((orders[0] == [*orders, in_order][1]).all(), expected)


def checked_step(
    step: int | Tensor, rows: int, statistics: bool, bidirectional: bool = False
) -> int | Tensor:
    """Check a ``step`` and return it as an int or a tensor.

    Args:
        step: as given by the user.
        rows: number of rows; a tensor has an index for each.
        statistics: whether the call takes statistics over its rows.
        bidirectional: whether a backward direction would have to start in the middle.

    Raises:
        TypeError: if ``step`` is neither an int nor an int64 tensor.
        ValueError: if ``step`` is negative, above 2**62, a tensor with statistics over rows, or
            nonzero with ``bidirectional``.
        RuntimeError: if ``step`` is a tensor, but not ``(rows,)``.
    """
    if isinstance(step, Tensor):
        if step.dtype != torch.int64:
            raise TypeError(f"step must be an int or an int64 tensor, got {step.dtype}")
        if statistics:
            raise ValueError(
                "step must be an int in training with batch normalisation, got a tensor: rows at "
                "different ages have no common statistics"
            )
        if step.shape != (rows,):
            raise RuntimeError(f"step must have shape ({rows},), got {tuple(step.shape)}")
        if values_unknown(step):
            return step
        lowest, highest = (int(step.min()), int(step.max())) if len(step) else (0, 0)
    elif isinstance(step, (int, Integral)) and not isinstance(step, bool):
        # integers of numpy are Integral
        lowest = highest = step = step if isinstance(step, int) else int(step)
    else:
        raise TypeError(f"step must be an int or an int64 tensor, got {type(step).__name__}")
    if lowest < 0:
        raise ValueError(f"step must not be negative, got {lowest}")
    if highest > LAST_STEP:
        raise ValueError(f"step must be at most 2**62, got {highest}")
    if bidirectional and highest > 0:
        raise ValueError(
            f"step must be 0 with bidirectional=True, got {highest}: the backward direction "
            "starts at the last frame"
        )
    return step


def check_tensors(x: Tensor, state: State) -> None:
    """Check the dtype of the input, and the devices and dtypes of the states.

    Raises:
        RuntimeError: if the input has no floating point dtype, or a state has another device than
            the input, or a dtype that does not go with it: without autocast any other, under
            autocast an integer one, or float64 on one side alone.
    """
    if not x.is_floating_point():
        raise RuntimeError(f"input must have a floating point dtype, got {x.dtype}")
    for s in state:
        check_device("hidden", s, x)
        if s.dtype == x.dtype:
            continue
        apart = not s.is_floating_point() or torch.float64 in (s.dtype, x.dtype)
        if apart or autocast_dtype(x.device) is None:
            raise RuntimeError(f"hx must have the dtype of the input, {x.dtype}, got {s.dtype}")


def check_traced(
    kernel: Kernel, training: bool, lengths: object = None, packed: object = None
) -> None:
    """Refuse what torch.jit.trace would record as a constant of its example, or cannot export.

    Args:
        kernel: kernel that runs the call.
        training: whether the training of a normalised layer would be recorded.
        lengths: as given by the user.
        packed: a PackedSequence whose sizes would be recorded.

    Raises:
        RuntimeError: if one of the last three is given while torch.jit.trace runs, or
            ``torch.onnx.export(dynamo=False)`` would record an operator that it does not know.
    """
    if not jit_tracing():
        return
    if kernel.traceable and torch.onnx.is_in_onnx_export():
        raise RuntimeError(
            "torch.onnx.export(dynamo=False) does not know the operators of rnnorm's kernels: use "
            "rnnorm.export.onnx"
        )
    if lengths is not None:
        raise RuntimeError("lengths must be None in torch.jit.trace, which keeps their values")
    if packed is not None:
        raise RuntimeError(
            "the input must be no PackedSequence in torch.jit.trace on the reference kernel, which "
            "keeps its sizes: use torch.export with lengths="
        )
    if training:
        raise RuntimeError("torch.jit.trace takes this layer in evaluation alone: call eval()")


def check_device(kind: str, tensor: Tensor, x: Tensor) -> None:
    """Check that a tensor is on the device of the input.

    Raises:
        RuntimeError: if it is on another one; the text is torch.nn's.
    """
    # a kernel would read the address in its own device's memory
    if tensor.device != x.device:
        raise RuntimeError(
            f"Input and {kind} tensors are not at the same device, found input tensor at "
            f"{x.device} and {kind} tensor at {tensor.device}"
        )
