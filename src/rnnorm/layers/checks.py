"""What a layer refuses of a call: steps, states, devices."""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor

from rnnorm.cells.cell import State
from rnnorm.layers.autocast import autocast_dtype
from rnnorm.tracing import jit_tracing, stands_for_several

#: largest ``step``: to it a sequence's own steps are added, and int64 has to hold the sum
LAST_STEP = 2**62


def checked_step(
    step: int | Tensor, rows: int, training: bool, bidirectional: bool = False
) -> int | Tensor:
    """A ``step`` as an int or a tensor; refuses what is no index of a first frame.

    Args:
        step: as given by the user.
        rows: number of rows, each of which a tensor gives an index.
        training: whether the layer is in training.
        bidirectional: whether a backward direction would have to start in the middle.

    Raises:
        TypeError: ``step`` is neither an int nor an int64 tensor.
        ValueError: it is negative, above 2**62, a tensor in training, or nonzero with
            ``bidirectional``.
        RuntimeError: a tensor is not ``(rows,)``.
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
        # Integral: of numpy
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
    """Refuses an input of integers, and states that do not go with it.

    Raises:
        RuntimeError: the input is of integers, a state has another device, or another dtype
            without autocast, or under autocast no floating point or float64 beside another.
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
    """Refuses what torch.jit.trace would keep as it was in its example.

    Args:
        training: whether what a normalised layer does in training would be kept.
        lengths: as given by the user.
        packed: a PackedSequence whose sizes would be kept.

    Raises:
        RuntimeError: there are such, while torch.jit.trace is at work.
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
    """Refuses what lies on another device than the input.

    Raises:
        RuntimeError: as torch.nn.
    """
    # a kernel would read the address as one of its own memory
    if tensor.device != x.device:
        raise RuntimeError(
            f"Input and {kind} tensors are not at the same device, found input tensor at "
            f"{x.device} and {kind} tensor at {tensor.device}"
        )
