"""Calls with resets that no kernel restarts: each piece between resets becomes a row.

A piece is what a row holds from one reset to the next. As a row of its own it begins from an
initial state of its own, has its own first step, and is reversed by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from rnnorm.cells.cell import State
from rnnorm.kernels.dispatch import Kernel
from rnnorm.layers.call.checks import as_hx
from rnnorm.layers.call.one_layer import CallSettings
from rnnorm.layers.call.sorted_batch import Batch, lengths_of
from rnnorm.layers.call.stack import run_stack
from rnnorm.layers.initial_state import initial_state
from rnnorm.layers.norm_parameters import populations
from rnnorm.layers.recurrent_dropout import keeps_mask
from rnnorm.tracing import (
    constant,
    exporting,
    jit_tracing,
    to_device,
    unobserved,
    values_unknown,
)

if TYPE_CHECKING:
    from rnnorm.layers.sequence_layer import SequenceLayer


def _why_cut(module: SequenceLayer, kernel: Kernel) -> str:
    """Say why a kernel cannot restart the rows of a layer by itself, empty if it can."""
    if not kernel.restarts:
        return f"the kernel {kernel.name!r} does not restart rows"
    if module.bidirectional:
        return "a backward direction reads the reverse of each piece between resets"
    shared = not module.training and all(each.shared for each in populations(module))
    if module._has_statistics() and not shared:
        return "batch normalisation has statistics for each step of a piece between resets"
    if module.learn_initial_state or (module.training and module.initial_noise):
        return "pieces between resets begin from states that are not zeros"
    if module.training and module._draws and keeps_mask(module.recurrent_dropout):
        return "each piece between resets has one mask of recurrent dropout"
    return ""


def must_cut(module: SequenceLayer, kernel: Kernel) -> bool:
    """Tell whether a call with resets needs a row for each piece.

    Raises:
        RuntimeError: if it does while a program is recorded, which cannot have the cuts.
    """
    why = _why_cut(module, kernel)
    if why and _recorded():
        raise RuntimeError(
            f"reset must be None in torch.export and torch.jit.trace of this layer: {why}, so rows "
            "would be cut where the example's reset is True"
        )
    return bool(why)


@constant
def _recorded() -> bool:
    """Tell whether a program is being recorded."""
    return bool(exporting()) or jit_tracing()


class Pieces(NamedTuple):
    """The pieces of a batch, which are the rows of another one.

    Pieces are numbered by row, as the user gave the rows, then by time.

    Args:
        batch: the pieces, sorted by length.
        lengths: ``(S,)`` on the CPU, the longest first.
        row: ``(S,)``, index of a piece's row in the uncut batch.
        continues: ``(S,)`` on the CPU, whether a piece begins its row without a reset.
        last: ``(B,)``, index in ``batch`` of the last piece of each row of the uncut batch.
        frames: ``(N,)``, index of each frame among the ``T * B`` of the uncut batch; None if all
            are frames.
        cut_frames: ``(N,)``, index of each frame among those of ``batch``.
    """

    batch: Batch
    lengths: Tensor
    row: Tensor
    continues: Tensor
    last: Tensor
    frames: Tensor | None
    cut_frames: Tensor


def cut(batch: Batch, reset: Tensor) -> Pieces:
    """Cut the rows of a batch where ``reset`` ``(T, B)`` is True.

    Raises:
        RuntimeError: if the values of ``reset`` are not known.
    """
    if values_unknown(reset):
        raise RuntimeError(
            "reset must have values before the call, neither on the meta device nor mapped by "
            "torch.func.vmap: rows of this layer are cut where it is True"
        )
    x, (T, B) = batch.x, reset.shape
    order, back = (
        torch.arange(B, device="cpu") if indices is None else indices.cpu()
        for indices in (batch.sorted_indices, batch.unsorted_indices)
    )
    row_lengths = lengths_of(x, batch.batch_sizes)[back]
    # frames are numbered as pieces are: by row, as the user gave the rows, then by time
    row, t = (torch.arange(T, device="cpu") < row_lengths.unsqueeze(1)).nonzero(as_tuple=True)
    row = back[row]
    asked = reset.cpu()[t, row]
    begins = asked | (t == 0)
    first, piece = begins.nonzero().squeeze(1), begins.cumsum(0) - 1
    lengths, by_length = piece.bincount().sort(descending=True, stable=True)
    rank, count = by_length.argsort(), len(lengths)
    cut_frames = (torch.arange(len(t), device="cpu") - first[piece]) * count + rank[piece]
    frames = t * B + row
    if whole := len(frames) == T * B:
        cut_frames = torch.empty_like(cut_frames).scatter_(0, frames, cut_frames)
    last = rank[piece[row_lengths.cumsum(0) - 1]][order]
    row, last, frames, cut_frames, by_length, rank = (
        to_device(index, x.device)
        for index in (row[first], last, frames, cut_frames, by_length, rank)
    )
    data = x.flatten(0, 1) if whole else x.flatten(0, 1).index_select(0, frames)
    longest = int(lengths[0])
    # padding is never read
    cut_x = x.new_empty(longest * count, x.size(2)).index_copy_(0, cut_frames, data)
    parts = Batch(cut_x.view(longest, count, x.size(2)))
    if lengths[-1] < longest:
        sizes = count - lengths.bincount().cumsum(0)[:longest]
        parts = Batch(parts.x, sizes, by_length, rank)
    continues = ~asked[first] & (t[first] == 0)
    return Pieces(parts, lengths, row, continues, last, None if whole else frames, cut_frames)


def run_pieces(
    module: SequenceLayer, settings: CallSettings, batch: Batch, state: State
) -> tuple[Tensor, State, State]:
    """Run all layers as ``run_stack`` does, with a row for each piece.

    Args:
        module: holds the layers' parameters and populations.
        settings: the kernel and options of the call; the rows are cut at its ``reset``.
        batch: the rows, sorted by length.
        state: the given states ``(D * num_layers, B, ·)``, empty without.

    Raises:
        ValueError, RuntimeError: as ``run_stack`` and ``cut``.
    """
    reset = settings.reset
    assert reset is not None
    pieces = cut(batch, reset)
    parts = pieces.batch
    state, ages = _begin(module, pieces, batch.x, state, settings.step)
    if parts.sorted_indices is not None:
        state = tuple([s.index_select(1, parts.sorted_indices) for s in state])
        ages = ages if isinstance(ages, int) else ages[parts.sorted_indices]
    states: State = ()
    if settings.kernel.layer is None:
        output, state = _run_torch(module, pieces, state)
    else:
        # padding is not read
        own = settings._replace(step=ages, reset=None, clears=False)
        output, state, states = run_stack(module, own, parts, state)
    output, *each = [_join(s, pieces, reset.shape) for s in (output, *states)]
    return output, tuple([s.index_select(1, pieces.last) for s in state]), tuple(each)


def _join(output: Tensor, pieces: Pieces, shape: tuple[int, ...]) -> Tensor:
    """Return an output of pieces as that of the uncut rows, ``(T, B, ...)`` for ``shape``."""
    frames = _frames_of(output.flatten(0, 1), pieces.cut_frames)
    if pieces.frames is not None:
        padded = frames.new_zeros(shape[0] * shape[1], *frames.shape[1:])
        frames = padded.index_copy(0, pieces.frames, frames)
    return frames.view(*shape, *frames.shape[1:])


def _frames_of(output: Tensor, index: Tensor) -> Tensor:
    """Return ``output[index]``, which leaves out the padding."""
    # memory of zeros for the gradient of the padding takes long on a CPU
    if output.is_cpu and unobserved((output,)) and not torch.is_anomaly_enabled():
        return _Frames.apply(output, index)  # type: ignore[no-any-return,no-untyped-call]
    return output.index_select(0, index)


class _Frames(torch.autograd.Function):
    """The frames of a padded output; the gradient of the padding, never read, has any values."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, index: Tensor) -> Tensor:
        """Return ``output[index]``."""
        ctx.save_for_backward(index)
        ctx.shape = output.shape
        return output.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the frames, where they stood."""
        (index,) = ctx.saved_tensors
        return grad.new_empty(ctx.shape).index_copy_(0, index, grad), None


def _begin(
    module: SequenceLayer, pieces: Pieces, like: Tensor, state: State, step: int | Tensor
) -> tuple[State, int | Tensor]:
    """Return the initial states of pieces, and their ages: an int if these are equal."""
    continues, row = pieces.continues, pieces.row
    if not state or not continues.all():
        new = initial_state(module, len(continues), like, pieces.batch)
    given = tuple([s.index_select(1, row) for s in state])
    if given and not continues.all():
        kept = to_device(continues, like.device).view(1, -1, 1)
        given = tuple([torch.where(kept, s, n) for s, n in zip(given, new, strict=True)])
    ages = torch.where(continues, step[row].cpu() if isinstance(step, Tensor) else step, 0)
    alike = bool((ages == ages[0]).all())
    return given or new, int(ages[0]) if alike else ages.to(like.device)


def _run_torch(module: SequenceLayer, pieces: Pieces, state: State) -> tuple[Tensor, State]:
    """Run torch.nn's own forward over the pieces."""
    packed = pack_padded_sequence(pieces.batch.x, pieces.lengths)
    # cuDNN takes no expanded tensors
    state = tuple([s.contiguous() for s in state])
    output, hidden = module.torch_class.forward(module, packed, as_hx(state))
    return pad_packed_sequence(output)[0], hidden if isinstance(hidden, tuple) else (hidden,)
