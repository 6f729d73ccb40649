"""Conversion of dense, right-padded and packed input to rows sorted by length, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout, pad
from torch.nn.utils.rnn import PackedSequence

from rnnorm.tracing import exporting, holds, known, to_device


class Batch(NamedTuple):
    """Rows sorted by length, longest first.

    ``x`` is ``(T, B, I)``. ``batch_sizes`` ``(T,)``, int64 on the CPU, counts the active rows of
    each step, and is None if all rows are active at all steps. The indices are those of
    PackedSequence. ``frames`` holds the index of each frame of a PackedSequence in ``(T * B,)``,
    and is None for other input, and where rows are known to have one length.
    """

    x: Tensor
    batch_sizes: Tensor | None = None
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None
    frames: Tensor | None = None

    @property
    def ragged(self) -> bool:
        """Tell whether the rows have different lengths, or may have in traced code."""
        sizes = self.batch_sizes
        return sizes is not None and known(sizes[0] - sizes[-1]) != 0


def even(packed: PackedSequence) -> bool:
    """Tell whether the rows of a PackedSequence are known to have one length."""
    sizes = packed.batch_sizes
    if torch.compiler.is_compiling() or len(sizes) == 0:
        return False
    return known(sizes[0] - sizes[-1]) == 0


def count_rows(packed: PackedSequence, state: Sequence[Tensor]) -> int:
    """Return the number of rows of a PackedSequence, from a shape if possible.

    Raises:
        RuntimeError: if in traced code ``state`` has another number of rows.
    """
    first = packed.batch_sizes[0]
    if packed.sorted_indices is not None:
        return packed.sorted_indices.size(0)
    if not state or known(first) is not None:
        return int(first)
    rows = state[0].size(1)
    expected = "hx must have as many rows as the PackedSequence"
    if not holds(first == rows, expected):
        raise RuntimeError(expected)
    return rows


def from_packed(packed: PackedSequence, rows: int) -> Batch:
    """Return the rows of a PackedSequence, in its sorted order.

    Raises:
        RuntimeError: if its ``batch_sizes`` are not int64, grow, do not begin with all rows, or do
            not sum to its frames.
    """
    data, sizes, order, back = packed
    if sizes.dtype != torch.int64:
        if exporting():
            raise RuntimeError(
                "torch.export does not take pack_padded_sequence: give the padded batch, and "
                "lengths="
            )
        raise RuntimeError(f"batch_sizes of a PackedSequence must be int64, got {sizes.dtype}")
    (steps,), (count, features) = sizes.shape, data.shape
    expected = "batch_sizes of a PackedSequence must begin with all rows, not grow, and sum to its"
    if not _fits(sizes, rows, count, f"{expected} frames"):
        raise RuntimeError(f"{expected} {count} frames, got {sizes.tolist()} with {rows} rows")
    if not torch.compiler.is_compiling() and count == steps * rows:
        return Batch(data.view(steps, rows, features), None, order, back)
    frames = to_device(_frames(sizes, rows, count), data.device)
    # padding is never read
    x = data.new_empty(steps * rows, features).index_copy_(0, frames, data)
    return Batch(x.view(steps, rows, features), sizes, order, back, frames)


def to_packed(output: Tensor, batch: Batch, batch_sizes: Tensor) -> PackedSequence:
    """Return ``output`` ``(T, B, ...)`` packed like the PackedSequence that made ``batch``."""
    _, _, order, back, frames = batch
    data = output.flatten(0, 1)
    # a copy: a view would not allow detach_()
    data = data.clone() if frames is None else data.index_select(0, frames)
    return PackedSequence(data, batch_sizes, order, back)


def drop_frames(x: Tensor, batch: Batch, p: float) -> Tensor:
    """Drop values of ``x`` ``(T, B, ·)`` in training, with torch.nn's draws for ``batch``."""
    if batch.frames is None:
        return dropout(x, p)
    # torch.nn draws for the frames of a PackedSequence, without padding
    frames = dropout(x.flatten(0, 1).index_select(0, batch.frames), p)
    return (
        frames.new_zeros(x.size(0) * x.size(1), x.size(2))
        .index_copy(0, batch.frames, frames)
        .view_as(x)
    )


def _fits(batch_sizes: Tensor, rows: int, count: int, otherwise: str) -> bool:
    """Tell whether ``batch_sizes`` are those of ``rows`` rows with ``count`` frames in all.

    If not, a kernel would read and write beyond the rows. Arguments and result are else as for
    ``holds``.
    """
    if torch.compiler.is_compiling():
        falls = (batch_sizes[0] == rows) & (batch_sizes[1:] <= batch_sizes[:-1]).all()
        return holds(falls & (batch_sizes[-1] >= 0) & (batch_sizes.sum() == count), otherwise)
    sizes = batch_sizes.tolist()
    falling = sizes[0] == rows and sizes[-1] >= 0 and sizes == sorted(sizes, reverse=True)
    return falling and sum(sizes) == count


def _frames(batch_sizes: Tensor, rows: int, count: int) -> Tensor:
    """Return the indices in ``(T * rows,)`` of the ``count`` frames of a PackedSequence."""
    padding = rows - batch_sizes
    before = (padding.cumsum(0) - padding).repeat_interleave(batch_sizes, output_size=count)
    return torch.arange(count, device="cpu") + before


def refuse_lengths(name: str, frames: Tensor | PackedSequence) -> None:
    """Refuse ``lengths`` beside an argument that is not a 3-D batch.

    Raises:
        ValueError: if ``frames``, the argument ``name``, is packed or has another dimension.
    """
    if isinstance(frames, PackedSequence):
        kind = "a PackedSequence, which has its own"
    elif frames.dim() == 3:
        return
    else:
        kind = f"{frames.dim()}-D {name}"
    raise ValueError(f"lengths must be None with {kind}: they are for a 3-D batch")


def check_lengths(lengths: Tensor | Sequence[int], steps: int, rows: int) -> Tensor:
    """Check ``lengths`` and return them as an int64 tensor on the CPU.

    Raises:
        TypeError: if ``lengths`` are not integers.
        RuntimeError: if there are not as many as rows, one is below 1 or exceeds ``steps``, or vmap
            maps them.
    """
    try:
        lengths = torch.as_tensor(lengths, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        got = repr(lengths)
        got = got if len(got) < 100 else f"a {type(lengths).__name__}"
        raise TypeError(f"lengths must be integers, got {got}") from None
    if not torch.compiler.is_compiling() and torch._C._functorch.is_batchedtensor(lengths):
        raise RuntimeError(
            "lengths must not be mapped by torch.func.vmap, which hides their values"
        )
    kind = lengths.dtype
    if lengths.numel() and (kind.is_floating_point or kind.is_complex or kind == torch.bool):
        raise TypeError(f"lengths must be integers, got {kind}")
    if lengths.shape != (rows,):
        raise RuntimeError(
            f"lengths must have one entry for each of the {rows} rows, got shape "
            f"{tuple(lengths.shape)}"
        )
    # torch cannot compare some integer types, such as uint16
    lengths = lengths.to(torch.int64)
    if rows:
        low, high = lengths.min(), lengths.max()
        expected = "lengths must lie between 1 and the steps of the input"
        if not holds((low >= 1) & (high <= steps), expected):
            raise RuntimeError(
                f"lengths must lie between 1 and the {steps} steps of the input, got values from "
                f"{int(low)} to {int(high)}"
            )
    return lengths


def from_dense(input: Tensor, batch_first: bool, lengths: Tensor | Sequence[int] | None) -> Batch:
    """Return the rows of a dense batch, cut at the longest one if its length is known.

    Raises:
        RuntimeError: if the input has no step; as ``check_lengths``.
        TypeError: as ``check_lengths``.
    """
    x = input.transpose(0, 1) if batch_first else input
    steps, rows = x.size(0), x.size(1)
    if steps == 0:
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    if lengths is None:
        return Batch(x)
    lengths, order = check_lengths(lengths, steps, rows).sort(descending=True, stable=True)
    longest = known(lengths[0]) if rows else steps
    if longest is None:
        longest = steps
    elif not rows or lengths[-1] == longest:
        return Batch(x[:longest])
    order = order.to(x.device)
    sizes = (lengths > torch.arange(longest, device="cpu").unsqueeze(1)).sum(1)
    return Batch(x[:longest].index_select(1, order), sizes, order, order.argsort())


def mean_frame(batch: Batch) -> Tensor:
    """Return the mean ``(B, I)`` of each row's frames without padding, in float32 or wider.

    The rows are in the order in which the user gave them.
    """
    x, sizes, _, back, _ = batch
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if sizes is None:
        mean = x.mean(0)
    else:
        real = (sizes.unsqueeze(1) > torch.arange(x.size(1), device="cpu")).to(x.device)
        mean = x.masked_fill(~real.unsqueeze(2), 0).sum(0) / real.sum(0).unsqueeze(1)
    return mean if back is None else mean.index_select(0, back)


def to_dense(output: Tensor, batch: Batch, batch_first: bool, input: Tensor) -> Tensor:
    """Return ``output`` ``(T, B, ...)`` in the layout, order of rows and length of ``input``."""
    if batch.unsorted_indices is not None:
        output = output.index_select(1, batch.unsorted_indices)
    missing = input.size(1 if batch_first else 0) - output.size(0)
    output = pad(output, (0, 0) * (output.dim() - 1) + (0, missing)) if missing else output
    return output.transpose(0, 1) if batch_first else output


def lengths_of(x: Tensor, batch_sizes: Tensor | None) -> Tensor:
    """Return the number of frames ``(B,)`` of each row of ``x`` ``(T, B, I)``, on the CPU."""
    if batch_sizes is None:
        return torch.full((x.size(1),), x.size(0), device="cpu")
    return (batch_sizes.unsqueeze(1) > torch.arange(x.size(1), device="cpu")).sum(0)


def reset_of(batch: Batch, reset: Tensor, batch_first: bool) -> Tensor:
    """Return ``reset``, in the layout of the input that ``batch`` was made of, as ``(T, B)``."""
    T, B, _ = batch.x.shape
    if reset.dim() == 1:
        # packed, as the input is
        if batch.frames is None:
            return reset.view(T, B)
        return reset.new_zeros(T * B).index_copy(0, batch.frames, reset).view(T, B)
    reset = (reset.T if batch_first else reset)[:T]
    order = batch.sorted_indices
    return reset if order is None else reset.index_select(1, order)


def reverse(x: Tensor, batch_sizes: Tensor | None) -> Tensor:
    """Reverse the unpadded part of each row, which stays at the row's beginning."""
    if batch_sizes is None:
        return x.flip(0)
    lengths = lengths_of(x, batch_sizes)
    t = torch.arange(x.size(0), device="cpu").unsqueeze(1)
    mirrored = lengths - 1 - t
    index = torch.where(mirrored >= 0, mirrored, t).to(x.device)
    return x.gather(0, index.unsqueeze(-1).expand_as(x))
