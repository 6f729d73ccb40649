"""The backward pass: for each step one launch and one product, or for many steps one launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rnnorm.kernels.inputs import SAVED, Inputs, Options, moments_of
from rnnorm.kernels.operators import backward_like
from rnnorm.kernels.triton import loop, step
from rnnorm.kernels.triton.input_term import finish, undo
from rnnorm.kernels.triton.plan import Plan


def run_backward(
    inputs: Inputs,
    results: Sequence[Tensor],
    upstream: Sequence[Tensor | None],
    options: Options,
    wants_x: bool,
) -> list[Tensor]:
    """Runs the pass, without autograd.

    Args:
        inputs: of the forward pass.
        results: of the forward pass, with what it saved.
        upstream: gradients of output, h_n and c_n.
        options: of the forward pass.
        wants_x: whether the gradient of x is wanted.

    Returns:
        gradients of what ``backward_like`` names; what is absent has no elements.
    """
    plan = Plan(inputs, options)
    B, H, wide, given = plan.B, plan.H, plan.wide, inputs.x.dtype
    taken = moments_of(results)
    z_x, z_h, *states = results[SAVED]
    z_x, z_h = z_x[: plan.frames], z_h[: plan.frames]
    narrow = plan.pack(results[0])
    h, c = (kept if kept.numel() else narrow for kept in states)
    # nothing is put into its rows a second time
    mean, var = (torch.empty_like(moment) for moment in taken[0])
    x = finish(z_x, plan, inputs.gamma_input, (mean, var))

    d_output, d_h, d_c = (
        inputs.x.new_zeros(like.shape, dtype=wide) if d is None else d.to(wide)
        for d, like in zip(upstream, (results[0], inputs.h0, inputs.h0), strict=True)
    )
    d_h_frames = plan.pack(d_output).clone()
    plan.add_to_last(d_h_frames, d_h)
    d_x = torch.empty_like(z_x, dtype=wide)
    d_z = torch.empty_like(z_h)
    product = inputs.x.new_empty(B, H)
    # a step reads one and writes the other
    carries = inputs.x.new_empty(2, B, H, dtype=wide)
    sums = B if plan.by_row else 1
    width = plan.gates * H
    d_gamma, d_shift = inputs.x.new_zeros(2, sums, width, dtype=wide)
    d_gamma_cell, d_beta_cell = inputs.x.new_zeros(2, sums, H, dtype=wide)
    state = h if inputs.c0 is None else c
    before = inputs.h0 if inputs.c0 is None else inputs.c0
    added = (d_gamma, d_shift, d_gamma_cell, d_beta_cell)
    later = 0
    for first, stop in reversed(plan.runs(back=True)):
        start, n = plan.starts[first], plan.sizes[first]
        hidden, out, sites = plan.sites(first, taken)
        variant = plan.step(hidden, out)
        if stop == first + 1:
            grid, how = plan.launch(n)
            step.backward[grid](
                x, z_h, state if first else before, c, *sites,
                d_h_frames, product, carries[stop % 2], d_c, d_x, d_z, carries[first % 2], *added,
                start, plan.starts[first - 1] if first else 0, n, later,
                hidden.row, hidden.pitch, out.row, out.pitch, H, S=variant, **how,
            )  # fmt: skip
        else:
            grid, how = plan.launch(n, looped=True)
            loop.backward[grid](
                x, z_h, state, c, *sites,
                d_h_frames, product, carries, d_c, d_x, d_z, *added, inputs.weight_hh,
                plan.first_frames, plan.count(), first, stop, hidden.row, hidden.skip,
                hidden.pitch, out.row, out.skip, out.pitch, later, B, H, S=variant, **how,
            )  # fmt: skip
        torch.mm(d_z[start : start + n], inputs.weight_hh, out=product[:n])
        later = n
    carried = carries[0]

    d_z_x, d_gamma_input, d_shift_input = undo(d_x, z_x, plan, inputs.gamma_input, taken[0])
    d_weight_ih = d_z_x.t() @ plan.pack(inputs.x)
    begin = plan.sizes[0]
    d_weight_hh = d_z[:begin].t() @ inputs.h0.to(given)
    d_weight_hh += d_z[begin:].t() @ plan.before(narrow)
    d_h0 = product.to(wide)
    d_h0 = d_h0 + carried if options.cell == "GRU" else d_h0
    d_hidden = d_shift.sum(0)
    if options.cell == "GRU":
        biases = (d_shift_input, d_hidden)
    else:
        both = d_hidden if options.joint else d_shift_input
        biases = (both, both.clone())
    grads = [
        plan.unpack(d_z_x @ inputs.weight_ih) if wants_x else None,
        d_h0, carried, d_weight_ih, d_weight_hh, *biases, None, None, None,
        d_gamma_input, d_gamma.sum(0), d_gamma_cell.sum(0), d_beta_cell.sum(0),
    ]  # fmt: skip
    return [
        inputs.x.new_empty(0) if like is None or grad is None else grad
        for like, grad in zip(backward_like(inputs, wants_x), grads, strict=True)
    ]
