"""The short call of a sequence class, whose layers and directions are short calls one by one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from rnnorm.cells.cell import State
from rnnorm.kernels import dispatch, own_cell
from rnnorm.kernels.call import Request
from rnnorm.kernels.cpu import layer as cpu
from rnnorm.layers.call import short_call
from rnnorm.layers.call.checks import as_hx, states_of
from rnnorm.layers.call.one_layer import CallSettings, run_layer
from rnnorm.layers.call.sorted_batch import reverse
from rnnorm.layers.initial_state import initial_state
from rnnorm.layers.norm_parameters import populations


def run(module: Any, input: Any, hx: Any, step: Any) -> Any:
    """Run a sequence class on a dense batch, if the CPU kernel is all that the call takes.

    Args:
        module: the layer.
        input: as given by the user.
        hx: as given by the user.
        step: as given by the user.

    Returns:
        what the call returns, or None if only the usual call gives that.
    """
    if (
        module.proj_size
        or module.learn_initial_state
        or module.recurrent_dropout
        or dispatch.forced()
        or type(input) is not Tensor
        # an iterator could be read once only
        or not (hx is None or isinstance(hx, (Tensor, tuple, list)))
    ):
        return None
    if input.is_nested or input.dim() != 3:
        return None
    x = input.transpose(0, 1) if module.batch_first else input
    several = module.num_layers > 1 or module.bidirectional
    found = (_several if several else _one)(module, x, hx, step)
    if found is None:
        return None
    output, state = found
    output = output.transpose(0, 1) if module.batch_first else output
    return output, as_hx(state)


def _one(module: Any, x: Tensor, hx: Any, step: Any) -> tuple[Tensor, State] | None:
    """Run the only layer, and return output and states ``(1, B, ·)``, or None."""
    shape = (1, x.shape[1], module.hidden_size)
    found = short_call.one_layer(module, "_l0", x, hx, step, shape)
    if found is None:
        return None
    # in place: a view would not allow detach_()
    return found[0], tuple([s.unsqueeze_(0) for s in found[1]])


def _several(module: Any, x: Tensor, hx: Any, step: Any) -> tuple[Tensor, State] | None:
    """Run all layers and directions, and return output and states ``(D * num_layers, B, ·)``.

    Return None before anything runs, if the call needs the usual call's checks.
    """
    if not own_cell.built_in(module.cell) or torch.is_autocast_enabled("cpu"):
        return None
    states, training, suffixes = len(module.cell.states), module.training, module._suffixes()
    given = states_of(hx, states)
    shape = (len(suffixes), x.shape[1], module.hidden_size)
    if short_call.needs_usual_call(module, x, hx, given, step, shape, None):
        return None
    if training and x.shape[0] > 1 and any([each.shared for each in populations(module)]):
        # the usual call merges steps of one statistic
        return None
    weight = module._parameters.get("weight_ih_l0")
    if not isinstance(weight, nn.Parameter) or (step and module.bidirectional) or 0 in x.shape:
        return None
    for tensor in (x, *given):
        if tensor.dtype is not weight.dtype or not tensor.is_cpu:
            return None
    kernel = dispatch.kernel_of(
        Request(module.cell, module.norm, x.device, x.dtype, training=training)
    )
    if kernel.layer is not cpu.layer:
        return None
    if not training:
        module._warn(step is None and bool(given) and not module.bidirectional)
    dispatch.calls["cpu"] += 1
    start = step or 0
    settings, first = CallSettings(kernel, start, None), given
    if not given and training and module.initial_noise:
        # drawn at once and before dropout, as the usual call does
        first = initial_state(module, shape[1], x, None)
    zeros = None if first else (x.new_zeros(shape[1:]),) * states
    directions, final = 2 if module.bidirectional else 1, []
    for k in range(0, len(suffixes), directions):
        if k and training and module.dropout:
            x = dropout(x, module.dropout)
        outputs = []
        for i in range(k, k + directions):
            state = zeros or tuple([s[i] for s in first])
            # the second direction reads the frames backwards
            frames, own = reverse(x, None) if i > k else x, state if given else ()
            found = short_call.one_of_several(module, suffixes[i], frames, state, own, start)
            if found is None:
                found = run_layer(module, settings, frames, None, state, suffixes[i])[:2]
            outputs.append(reverse(found[0], None) if i > k else found[0])
            final.append(found[1])
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
    return x, tuple([torch.stack(parts) for parts in zip(*final, strict=True)])
