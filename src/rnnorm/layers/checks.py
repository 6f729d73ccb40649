"""Checks of the arguments of a call: steps, states, devices."""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor

from rnnorm.cells.cell import State
from rnnorm.layers.autocast import autocast_dtype
from rnnorm.tracing import jit_tracing, stands_for_several

#: largest ``step``: int64 has to hold it plus the number of steps of a sequence
LAST_STEP = 2**62


def checked_step(
    step: int | Tensor, rows: int, training: bool, bidirectional: bool = False
) -> int | Tensor:
    """Check a ``step`` and return it as an int or a tensor.

    Args:
        step: as given by the user.
        rows: number of rows; a tensor has an index for each.
        training: whether the layer is in training.
        bidirectional: whether a backward direction would have to start in the middle.

    Raises:
        TypeError: if ``step`` is neither an int nor an int64 tensor.
        ValueError: if ``step`` is negative, above 2**62, a tensor in training, or nonzero with
            ``bidirectional``.
        RuntimeError: if ``step`` is a tensor, but not ``(rows,)``.
    """
    if isinstance(step, Tensor):
        if step.dtype != torch.int64:
            raise TypeError(f"step must be an int or an int64 tensor, got {step.dtype}")
        if training:
            raise ValueError(
                "step must be an int in training, got a tensor: rows at different ages have no "
                "common statistics"
            )
        if step.shape != (rows,):
            raise RuntimeError(f"step must have shape ({rows},), got {tuple(step.shape)}")
        if stands_for_several(step):
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


def check_traced(training: bool, lengths: object = None, packed: object = None) -> None:
    """Refuse what torch.jit.trace would record as a constant of its example.

    Args:
        training: whether the training of a normalised layer would be recorded.
        lengths: as given by the user.
        packed: a PackedSequence whose sizes would be recorded.

    Raises:
        RuntimeError: if one of the arguments is given while torch.jit.trace runs.
    """
    if not jit_tracing():
        return
    if lengths is not None:
        raise RuntimeError("lengths must be None in torch.jit.trace, which keeps their values")
    if packed is not None:
        raise RuntimeError(
            "the input must be no PackedSequence in torch.jit.trace on the reference kernel, which "
            "keeps its sizes: use torch.export with lengths="
        )
    if training:
        raise RuntimeError("torch.jit.trace takes a normalised layer in evaluation: call eval()")


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
