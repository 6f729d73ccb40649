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
    lengths = torch.as_tensor(lengths, device="cpu")
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise TypeError(f"lengths must be integers, got {lengths.dtype}")
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


def from_lengths(x: Tensor, lengths: Tensor) -> Batch:
    """The rows of a right-padded ``x`` ``(T, B, I)``, cut at the longest."""
    steps = int(lengths.max()) if len(lengths) else x.size(0)
    x = x[:steps]
    if bool((lengths == steps).all()):
        return Batch(x)
    sorted_lengths, order = lengths.sort(descending=True, stable=True)
    order = order.to(x.device)
    sizes = (sorted_lengths > torch.arange(steps).unsqueeze(1)).sum(1)
    return Batch(x.index_select(1, order), sizes, order, order.argsort())


def to_dense(output: Tensor, batch: Batch, steps: int) -> Tensor:
    """``output`` ``(T, B, H)`` in the original order of its rows, zero-padded to ``steps``."""
    if batch.unsorted_indices is not None:
        output = output.index_select(1, batch.unsorted_indices)
    return pad(output, (0, 0, 0, 0, 0, steps - output.size(0))) if len(output) < steps else output


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
