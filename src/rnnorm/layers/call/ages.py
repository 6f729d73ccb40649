"""Rows of a stream, whose calls continue one another: which begin anew, and how old they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from rnnorm.layers.call.sorted_batch import check_lengths, count_rows


def number_of_rows(input: Tensor | PackedSequence, batch_first: bool) -> int:
    """Return the number of rows of an input."""
    if isinstance(input, PackedSequence):
        return count_rows(input, ())
    return input.size(0 if batch_first else 1) if input.dim() == 3 else 1


def chosen_rows(rows: Any, state: Tensor) -> Tensor:
    """Return which rows are chosen, ``(B,)`` bool, for states ``(L, B, ...)``.

    Raises:
        TypeError, RuntimeError, IndexError, ValueError: as ``Stateful.reset``.
    """
    count = state.size(1)
    try:
        given = torch.as_tensor(rows, device=state.device)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"rows must be integers or bools, got {rows!r}") from None
    if given.dtype == torch.bool:
        if given.shape != (count,):
            raise RuntimeError(
                f"rows must have one bool for each of the {count} rows, got shape "
                f"{tuple(given.shape)}"
            )
        # an environment may write the next step's into the same memory
        return given.clone()
    if given.dtype == torch.uint8:
        raise TypeError(
            "rows must be integers or bools, got torch.uint8, by which both may be meant: give "
            "rows.bool() or rows.long()"
        )
    if given.numel() and (given.is_floating_point() or given.is_complex()):
        raise TypeError(f"rows must be integers or bools, got {given.dtype}")
    indices = given.to(torch.int64).flatten()
    if ((indices < -count) | (indices >= count)).any():
        raise IndexError(f"rows must lie between {-count} and {count - 1}, got {rows}")
    chosen = torch.zeros(count, dtype=torch.bool, device=state.device)
    chosen.index_fill_(0, indices % count, True)
    if chosen.sum() < len(indices):
        # such as 0 and 1 for each row, which are no indices
        raise ValueError(
            f"rows must name each row once, got {rows}: to give a flag for each row, make it bool"
        )
    return chosen


def reset_from_the_first_frame(
    anew: Tensor,
    input: Tensor | PackedSequence,
    reset: Tensor | PackedSequence | None,
    batch_first: bool,
) -> Any:
    """Return ``reset`` with True at the first frame of the rows that begin anew.

    A ``reset`` of another form than the input's is returned as it is, for the layer to refuse.
    """
    packed = isinstance(input, PackedSequence)
    frames: Tensor = input.data if packed else input  # type: ignore[assignment]
    first = torch.zeros(frames.shape[:-1], dtype=torch.bool, device=frames.device)
    anew = anew.to(frames.device)
    if packed:
        order = input.sorted_indices  # type: ignore[union-attr]
        first[: len(anew)] = anew if order is None else anew[order]
    elif batch_first and first.dim() == 2:
        first[:, 0] = anew
    else:
        first[:1] = anew
    if reset is not None:
        if not isinstance(reset, PackedSequence if packed else Tensor):
            return reset
        flags = reset.data
        if flags.dtype != torch.bool or (flags.shape, flags.device) != (first.shape, first.device):
            return reset
        first |= flags
    if not packed:
        return first
    like = input if reset is None else reset
    return PackedSequence(first, *like[1:])


def ages_after(
    age: int | Tensor,
    input: Tensor | PackedSequence,
    lengths: Tensor | Sequence[int] | None,
    reset: Tensor | PackedSequence | None,
    batch_first: bool,
) -> int | Tensor:
    """Return the ages of rows after a call with these arguments."""
    begins: Tensor | None = None
    if isinstance(input, PackedSequence):
        flags = torch.zeros_like(input.data[:, 0]) if reset is None else reset.data
        begins, count = pad_packed_sequence(PackedSequence(flags.to(torch.uint8), *input[1:]))
    else:
        rows_first, rows = batch_first and input.dim() == 3, number_of_rows(input, batch_first)
        steps = input.size(1 if rows_first else 0)
        if lengths is None and reset is None:
            return age + steps
        count = torch.full((rows,), steps)
        if lengths is not None:
            count = check_lengths(lengths, steps, rows)
        if isinstance(reset, Tensor):
            begins = reset.T if rows_first else reset.view(steps, rows)
    device = input.data.device
    count = count.to(device)
    if begins is None:
        return age + count
    t = torch.arange(len(begins), device=device).unsqueeze(1)
    last = torch.where(begins.bool() & (t < count), t, -1).amax(0)
    return torch.where(last < 0, age + count, count - last)
