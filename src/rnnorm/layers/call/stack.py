"""The run of all layers and directions of a sequence class, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from rnnorm.cells.cell import State
from rnnorm.kernels.cpu import layer as cpu
from rnnorm.layers.call.autocast import without_autocast
from rnnorm.layers.call.one_layer import CallSettings, run_layer
from rnnorm.layers.call.sorted_batch import Batch, drop_frames, reverse
from rnnorm.layers.recurrent_dropout import draw_masks
from rnnorm.norm.merged_moments import ActiveRows
from rnnorm.tracing import unobserved

if TYPE_CHECKING:
    from rnnorm.layers.sequence_layer import SequenceLayer


def run_stack(
    module: SequenceLayer, settings: CallSettings, batch: Batch, state: State
) -> tuple[Tensor, State, State]:
    """Run all layers.

    Args:
        module: holds the layers' parameters and populations.
        settings: the kernel and options of the call; the kernel restarts rows at a ``reset``.
        batch: rows sorted by length, the longest first.
        state: the initial states ``(D * num_layers, B, ·)``.

    Returns:
        output ``(T, B, D * H_out)``, final states ``(D * num_layers, B, ·)``, and the states after
        each step ``(T, B, D * num_layers, ·)``, empty unless asked for.

    Raises:
        ValueError: if in training with gradients there are too few rows for a statistic, and no
            estimate.
    """
    products, steps = settings.products, batch.x.size(0)
    output, sizes, rows = batch.x, batch.batch_sizes, None
    if module.training and module.synchronized():
        output, sizes, rows = _as_long_as_of_other_ranks(module, output, sizes)
    suffixes = module._suffixes()
    directions = 2 if module.bidirectional else 1
    final: list[State] = []
    every: list[State] = []
    for first in range(0, len(suffixes), directions):
        if first and module.dropout and module.training:
            output = drop_frames(output, batch, module.dropout)
        outputs = []
        for i in range(first, first + directions):
            backward = suffixes[i].endswith("_reverse")
            initial = tuple(s[i] for s in state)
            masks = None
            if module.recurrent_dropout is not None:
                masks = draw_masks(
                    module.recurrent_dropout,
                    module.training and module._draws,
                    module.cell,
                    output,
                    initial,
                    module.hidden_size,
                    batch.sorted_indices,
                )
            result, last, each_state = run_layer(
                module,
                settings,
                reverse(output, sizes) if backward else output,
                sizes,
                initial,
                suffixes[i],
                masks,
                rows,
            )
            outputs.append(reverse(result, sizes) if backward else result)
            final.append(last)
            if backward:
                each_state = tuple([reverse(s, sizes) for s in each_state])
            every.append(each_state)
        output = outputs[0]
        if directions > 1:
            # autocast refuses half types other than its own
            with without_autocast(output.device, products):
                output = torch.cat(outputs, -1)
    # no slice unless needed: a view would not allow detach_()
    output = output if output.size(0) == steps else output[:steps]
    state = _final_state(settings, final, output.device)
    if not settings.all_states:
        return output, state, ()
    with without_autocast(output.device, products):
        states = tuple([torch.stack(parts, 2)[:steps] for parts in zip(*every, strict=True)])
    return output, state, states


def _as_long_as_of_other_ranks(
    module: SequenceLayer, x: Tensor, sizes: Tensor | None
) -> tuple[Tensor, Tensor, ActiveRows]:
    """Return input and rows of each step, with the steps of the longest rank, and all its rows."""
    assert module.ranks is not None
    own = torch.full((x.size(0),), x.size(1), device="cpu") if sizes is None else sizes
    rows = module.ranks.active_rows(own, x.device)
    missing = rows.each.size(1) - x.size(0)
    # not torch.nn.functional.pad, which in torch 2.6 refuses a tensor without rows
    return torch.cat([x, x.new_zeros(missing, *x.shape[1:])]), pad(own, (0, missing)), rows


def _final_state(settings: CallSettings, final: list[State], device: torch.device) -> State:
    """Return the final states of all layers, one after the other."""
    own = settings.kernel.layer is cpu.layer and (not torch.is_grad_enabled() or unobserved(()))
    if len(final) == 1 and own:
        # in place, as the results are the kernel's own, and a view would not allow detach_()
        return tuple([s.unsqueeze_(0) for s in final[0]])
    with without_autocast(device, settings.products):
        return tuple([torch.stack(parts) for parts in zip(*final, strict=True)])
