"""The backward pass: for each step one launch and one product, or for many steps one launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rnnorm.kernels.inputs import Gradients, Inputs, Options, Results
from rnnorm.kernels.triton import loop, step
from rnnorm.kernels.triton.input_term import finish, undo
from rnnorm.kernels.triton.plan import Plan


def run_backward(
    inputs: Inputs,
    results: Results,
    upstream: Sequence[Tensor | None],
    options: Options,
    wants_x: bool,
) -> Gradients:
    """Run the backward pass, without autograd.

    Args:
        inputs: inputs of the forward pass.
        results: results of the forward pass.
        upstream: gradients of output, h_n and c_n.
        options: options of the forward pass.
        wants_x: whether the gradient of x is wanted.
    """
    plan = Plan(inputs, options)
    B, H, wide, given = plan.B, plan.H, plan.wide, inputs.x.dtype
    taken = results.moments
    z_x, z_h, saved_wide_h, saved_c = results.saved
    z_x, z_h = z_x[: plan.frames], z_h[: plan.frames]
    narrow = plan.pack(results.output)
    h, c = (saved if saved.numel() else narrow for saved in (saved_wide_h, saved_c))
    # the statistics that the forward pass took are not overwritten
    mean, var = (torch.empty_like(moment) for moment in taken.input)
    x = finish(z_x, plan, inputs.gamma_input, (mean, var))

    d_output, d_h, d_c = (
        inputs.x.new_zeros(like.shape, dtype=wide) if d is None else d.to(wide)
        for d, like in zip(upstream, (results.output, inputs.h0, inputs.h0), strict=True)
    )
    d_h_frames = plan.pack(d_output).clone()
    plan.add_to_last(d_h_frames, d_h)
    d_x = torch.empty_like(z_x, dtype=wide)
    d_z = torch.empty_like(z_h)
    product = inputs.x.new_empty(B, H)
    # a step reads one buffer and writes the other
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
    # the first step, with an even number, wrote this buffer
    carried, _ = carries

    d_z_x, d_gamma_input, d_shift_input = undo(d_x, z_x, plan, inputs.gamma_input, taken.input)
    d_weight_ih = d_z_x.t() @ plan.pack(inputs.x)
    begin = plan.sizes[0]
    d_weight_hh = d_z[:begin].t() @ inputs.h0.to(given)
    d_weight_hh += d_z[begin:].t() @ plan.before(narrow)
    d_h0 = product.to(wide)
    d_h0 = d_h0 + carried if options.skips else d_h0
    d_hidden = d_shift.sum(0)
    if options.separate:
        d_bias_ih, d_bias_hh = d_shift_input, d_hidden
    else:
        d_bias_ih = d_hidden if options.joint else d_shift_input
        d_bias_hh = d_bias_ih.clone()
    grads = {
        "x": plan.unpack(d_z_x @ inputs.weight_ih) if wants_x else None,
        "h0": d_h0,
        "c0": carried,
        "weight_ih": d_weight_ih,
        "weight_hh": d_weight_hh,
        "bias_ih": d_bias_ih,
        "bias_hh": d_bias_hh,
        "gamma_input": d_gamma_input,
        "gamma_hidden": d_gamma.sum(0),
        "gamma_cell": d_gamma_cell.sum(0),
        "beta_cell": d_beta_cell.sum(0),
    }
    # an operator's results may not share memory, not even those without elements
    return Gradients._make(
        [
            inputs.x.new_empty(0) if grad is None or getattr(inputs, name) is None else grad
            for name, grad in zip(Gradients._fields, map(grads.get, Gradients._fields), strict=True)
        ]
    )
