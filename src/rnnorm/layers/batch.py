"""Dense, unbatched, right-padded and packed input as rows sorted by length, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence


class Batch(NamedTuple):
    """Rows sorted by length, longest first.

    ``x`` is ``(T, B, I)``; ``batch_sizes`` ``(T,)`` int64 on the CPU counts the active rows of
    each step, None if all are active at all of them; the indices are those of PackedSequence.
    """

    x: Tensor
    batch_sizes: Tensor | None = None
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None

    @property
    def ragged(self) -> bool:
        """Whether the rows have different lengths."""
        sizes = self.batch_sizes
        return sizes is not None and bool(sizes[0] != sizes[-1])


def from_packed(packed: PackedSequence) -> Batch:
    """The rows of a PackedSequence, in its sorted order."""
    x, _ = pad_packed_sequence(PackedSequence(packed.data, packed.batch_sizes))
    return Batch(x, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)


def to_packed(output: Tensor, batch: Batch) -> PackedSequence:
    """The PackedSequence of ``output`` ``(T, B, H)`` with the order of ``batch``."""
    assert batch.batch_sizes is not None
    packed = pack_padded_sequence(output, row_lengths(batch.batch_sizes))
    return PackedSequence(
        packed.data, batch.batch_sizes, batch.sorted_indices, batch.unsorted_indices
    )


def check_lengths(lengths: Tensor | Sequence[int], steps: int, rows: int) -> Tensor:
    """``lengths`` as an int64 tensor on the CPU.

    Raises:
        TypeError: they are not integers.
        RuntimeError: their number is not that of the rows, or one is below 1 or beyond the input.
    """
    try:
        lengths = torch.as_tensor(lengths, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"lengths must be integers, got {lengths!r}") from None
    kind = lengths.dtype
    if lengths.numel() and (kind.is_floating_point or kind.is_complex or kind == torch.bool):
        raise TypeError(f"lengths must be integers, got {kind}")
    if lengths.shape != (rows,):
        raise RuntimeError(
            f"lengths must have one entry for each of the {rows} rows, got shape "
            f"{tuple(lengths.shape)}"
        )
    if rows and not 1 <= int(lengths.min()) <= int(lengths.max()) <= steps:
        raise RuntimeError(
            f"lengths must lie between 1 and the {steps} steps of the input, got values from "
            f"{int(lengths.min())} to {int(lengths.max())}"
        )
    return lengths.to(torch.int64)


def from_dense(input: Tensor, batch_first: bool, lengths: Tensor | Sequence[int] | None) -> Batch:
    """The rows of a dense batch, cut at the longest where it is right-padded.

    Raises:
        RuntimeError: there is no step; as ``check_lengths``.
        TypeError: as ``check_lengths``.
    """
    x = input.transpose(0, 1) if batch_first else input
    steps, rows = x.size(0), x.size(1)
    if steps == 0:
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    if lengths is None:
        return Batch(x)
    lengths = check_lengths(lengths, steps, rows)
    longest = int(lengths.max()) if rows else steps
    x = x[:longest]
    if bool((lengths == longest).all()):
        return Batch(x)
    sorted_lengths, order = lengths.sort(descending=True, stable=True)
    order = order.to(x.device)
    sizes = (sorted_lengths > torch.arange(longest).unsqueeze(1)).sum(1)
    return Batch(x.index_select(1, order), sizes, order, order.argsort())


def to_dense(output: Tensor, batch: Batch, batch_first: bool, input: Tensor) -> Tensor:
    """``output`` ``(T, B, H)`` in the layout, row order and number of steps of ``input``."""
    if batch.unsorted_indices is not None:
        output = output.index_select(1, batch.unsorted_indices)
    missing = input.size(1 if batch_first else 0) - output.size(0)
    output = pad(output, (0, 0, 0, 0, 0, missing)) if missing else output
    return output.transpose(0, 1) if batch_first else output


def row_lengths(batch_sizes: Tensor) -> Tensor:
    """The length of each row, ``(B,)``."""
    return (batch_sizes.unsqueeze(1) > torch.arange(int(batch_sizes[0]))).sum(0)


def reverse(x: Tensor, batch_sizes: Tensor | None) -> Tensor:
    """Turns the unpadded part of each row round, so that it stays a prefix."""
    if batch_sizes is None:
        return x.flip(0)
    t = torch.arange(x.size(0)).unsqueeze(1)
    mirrored = row_lengths(batch_sizes) - 1 - t
    index = torch.where(mirrored >= 0, mirrored, t).to(x.device)
    return x.gather(0, index.unsqueeze(-1).expand_as(x))
