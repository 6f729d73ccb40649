"""Jagged nested tensors in and out: their rows are packed for a call, and unpacked after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from rnnorm.tracing import to_device


def run(
    forward: Callable[..., tuple[Any, ...]],
    input: Tensor,
    lengths: object,
    reset: object,
    return_states: bool,
) -> tuple[Any, ...]:
    """Run a layer's ``forward`` over the rows of a jagged nested tensor, packed.

    Raises:
        ValueError, RuntimeError, TypeError: as ``pack`` and ``forward``.
    """
    packed, begins, back = pack(input, lengths, reset)
    output, hidden, *states = forward(packed, reset=begins, return_states=return_states)
    output = unpack(output, back, input)
    if not states:
        return output, hidden
    several = isinstance(hidden, tuple)
    every = tuple([unpack(s, back, input) for s in (states[0] if several else states)])
    return output, hidden, every if several else every[0]


def pack(
    input: Tensor, lengths: object, reset: object
) -> tuple[PackedSequence, PackedSequence | None, Tensor]:
    """Return the rows of a jagged nested tensor, packed, and the packed ``reset``.

    Args:
        input: jagged ``(B, j, I)``.
        lengths: as given by the user; must be None, since nested rows have lengths of their own.
        reset: as given by the user, jagged ``(B, j)`` or None.

    Returns:
        input and ``reset``, and for each frame of the input its index among the packed ones.

    Raises:
        ValueError: if ``lengths`` are given.
        RuntimeError: if the input is not jagged, 3-D and contiguous, or has a row without frames;
            if ``reset`` has other rows.
        TypeError: if ``reset`` is not a jagged nested tensor.
    """
    if lengths is not None:
        raise ValueError("lengths must be None with a nested tensor, which has its own")
    values, offsets = _parts("input", input, 3)
    counts = offsets.diff().cpu()
    if len(counts) == 0 or int(counts.min()) < 1:
        raise RuntimeError(
            "a nested input must have rows of at least one frame, got rows of lengths "
            f"{counts.tolist()}"
        )
    sorted_counts, order = counts.sort(descending=True, stable=True)
    active = sorted_counts > torch.arange(int(sorted_counts[0]), device="cpu").unsqueeze(1)
    t, rank = active.nonzero(as_tuple=True)
    frames = offsets.cpu()[:-1][order][rank] + t
    frames, back, order, unsorted = (
        to_device(index, values.device)
        for index in (frames, frames.argsort(), order, order.argsort())
    )
    layout = active.sum(1), order, unsorted
    packed = PackedSequence(values.index_select(0, frames), *layout)
    if reset is None:
        return packed, None, back
    if not (isinstance(reset, Tensor) and reset.is_nested):
        raise TypeError(
            "reset must be a jagged nested tensor, as the input is, or None, got "
            f"{type(reset).__name__}"
        )
    begins, own = _parts("reset", reset, 2)
    if not torch.equal(own, offsets):
        raise RuntimeError(
            f"reset must have the rows of the input, of lengths {counts.tolist()}, got "
            f"{own.diff().tolist()}"
        )
    return packed, PackedSequence(begins.index_select(0, frames), *layout), back


def unpack(output: PackedSequence, back: Tensor, like: Any) -> Tensor:
    """Return packed frames as a jagged nested tensor with the rows of the input ``like``."""
    sizes = output.batch_sizes
    # without the lengths it would be padded to their sum; a GPU would be waited for to count them
    shortest, longest = int((sizes == sizes[0]).sum()), len(sizes)
    return _with_rows_of(like, output.data.index_select(0, back), shortest, longest)


def split(nested: Any, sizes: list[int]) -> list[Tensor]:
    """Split the features of a jagged nested tensor ``(B, j, ·)``.

    The backward pass of torch.split crashes if a part of a nested tensor has no gradient.
    """
    lengths = nested._get_min_seqlen(), nested._get_max_seqlen()
    parts = torch.split(nested.values(), sizes, -1)
    return [_with_rows_of(nested, part, *lengths) for part in parts]


def _with_rows_of(nested: Any, frames: Tensor, shortest: int, longest: int) -> Tensor:
    """Return frames as a jagged nested tensor with the rows of another, of these lengths."""
    return torch.nested.nested_tensor_from_jagged(
        frames, nested.offsets(), min_seqlen=shortest, max_seqlen=longest
    )


def _parts(name: str, nested: Any, dim: int) -> tuple[Tensor, Tensor]:
    """Return frames and offsets of a jagged nested tensor.

    Raises:
        RuntimeError: if it is not jagged, contiguous, and of ``dim`` dimensions, the second ragged.
    """
    if nested.layout != torch.jagged:
        raise RuntimeError(
            f"a nested {name} must have the layout torch.jagged, got {nested.layout}: make it with "
            "torch.nested.nested_tensor(rows, layout=torch.jagged)"
        )
    names = "(B, j, I)" if dim == 3 else "(B, j)"
    if nested.dim() != dim or nested._ragged_idx != 1:
        raise RuntimeError(
            f"a nested {name} must be {names}, the rows first whatever batch_first says, got the "
            f"shape {tuple(nested.shape)}"
        )
    if nested.lengths() is not None:
        raise RuntimeError(
            f"a nested {name} must have no gaps between its rows, got one with lengths(), as of "
            f"torch.nested.narrow: give {name}.contiguous()"
        )
    return nested.values(), nested.offsets()
