"""The backward pass: for each step one launch and one product, or for many steps one launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rnnorm.kernels.cuda import passes
from rnnorm.kernels.inputs import (
    PEEPHOLES,
    Gradients,
    Inputs,
    Options,
    Results,
    Sites,
    separated,
)
from rnnorm.kernels.triton import loop, step
from rnnorm.kernels.triton.forward import keeps_fresh
from rnnorm.kernels.triton.input_term import finish, undo
from rnnorm.kernels.triton.plan import Plan


def run_backward(
    inputs: Inputs,
    results: Results,
    upstream: Sequence[Tensor | None],
    options: Options,
    wants_x: bool,
    *,
    cuda: bool = False,
) -> Gradients:
    """Run the backward pass, without autograd.

    Args:
        inputs: inputs of the forward pass.
        results: results of the forward pass.
        upstream: gradients of output, h_n and c_n.
        options: options of the forward pass.
        wants_x: whether the gradient of x is wanted.
        cuda: whether the kernels in CUDA C++ run all steps.
    """
    plan = Plan(inputs, options, cuda=cuda)
    B, H, wide, given = plan.B, plan.H, plan.wide, inputs.x.dtype
    taken = results.moments
    z_x, z_h, saved_third, saved_c = results.saved
    z_x, z_h = z_x[: plan.frames], z_h[: plan.frames]
    narrow = plan.pack(results.output)
    frames = plan.T * B
    h = saved_third[:frames] if options.skips and plan.narrow else narrow
    c = saved_c if saved_c.numel() else narrow
    fresh = separated(c, 2)[0]
    if keeps_fresh(inputs, options):
        fresh = saved_third[-frames:]
    # the statistics that the forward pass took are not overwritten
    mean, var = (torch.empty_like(moment) for moment in taken.input)
    x = finish(z_x, plan, inputs.gamma_input, (mean, var))

    d_output, d_h, d_c, _ = upstream
    d_h_frames = _gradient_of_frames(plan, d_output, d_h)
    several = (*options.several, B, H)
    d_c = inputs.h0.new_zeros(several, dtype=wide) if d_c is None else d_c.to(wide)
    d_x, d_z = torch.empty_like(z_x), torch.empty_like(z_h)
    product = inputs.x.new_empty(B, H)
    # a step reads one buffer and writes the other
    carries = carries_h = inputs.x.new_empty(2, *several, dtype=wide)
    if options.has_c and (options.skips or plan.drops):
        # the gradient of an h that skips the product, or is kept by zoneout
        carries_h = inputs.x.new_empty(2, B, H, dtype=wide)
    d_peephole = inputs.x.new_zeros(3, H, dtype=wide)
    sums = B if plan.by_row else 1
    width = plan.gates * H
    d_gamma, d_shift, d_gamma_cell, d_beta_cell = [
        inputs.x.new_zeros(sums, size, dtype=wide) for size in (width, width, H, H)
    ]
    state = h if inputs.c0 is None else c
    before = inputs.h0 if inputs.c0 is None else inputs.c0
    added = (d_gamma, d_shift, d_gamma_cell, d_beta_cell)
    later = 0
    layout = plan.layout(back=True)
    moments = _row_moments(plan, z_h, x, fresh) if layout is not None and plan.by_row else []
    for first, stop in reversed(plan.runs(layout, back=True)):
        start, n = plan.starts[first], plan.sizes[first]
        hidden, out, sites = plan.sites(first, taken)
        variant = plan.step(hidden, out)
        if stop == first + 1 and not cuda:
            grid, how = plan.launch(n)
            step.backward[grid](
                x, z_h, state if first else before, c, *sites,
                d_h_frames, product, carries[stop % 2], d_c, d_x, d_z, carries[first % 2], *added,
                start, plan.starts[first - 1] if first else 0, n, later,
                hidden.row, hidden.pitch, out.row, out.pitch, H, S=variant, **how,
            )  # fmt: skip
        elif layout is not None:
            if plan.by_row:
                sites = [*sites[:2], *moments[:2], *sites[4:6], *moments[2:]]
            earlier = plan.starts[first - 1] if first else 0
            passes.launch(
                plan, layout, (first, stop), ((hidden, out), sites),
                states=(inputs.c0, c), earlier=earlier if first else None, later=later,
                x=x, z=z_h, before_h=h[earlier:] if first else inputs.h0, h=h,
                output=d_h_frames, product=product, carried=carries[stop % 2], last=d_c,
                carry=carries[first % 2], carried_h=carries_h[stop % 2],
                carry_h=carries_h[first % 2], d_x=d_x, d_z=d_z, d_gamma=d_gamma, d_shift=d_shift,
                d_gamma_out=d_gamma_cell, d_shift_out=d_beta_cell, d_weight=d_peephole,
                weight=inputs.weight_hh,
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
    # steps write the two buffers in turn, step 0 the first ones
    carried, carried_h = carries[0], carries_h[0]

    # the products below can use its memory
    del x
    d_z_x, d_gamma_input, d_shift_input = undo(d_x, z_x, plan, inputs.gamma_input, taken.input)
    d_weight_ih = d_z_x.t() @ plan.pack(inputs.x)
    begin = plan.sizes[0]
    d_weight_hh = d_z[:begin].t() @ plan.seen(inputs.h0.to(given), slice(begin))
    d_weight_hh.addmm_(d_z[begin:].t(), plan.seen(plan.before(narrow), slice(begin, None)))
    d_h0 = plan.seen(product.to(wide), slice(begin))
    if options.skips or inputs.mask_zoneout_h is not None:
        d_h0 = d_h0 + carried_h
    d_gamma, d_hidden, d_gamma_cell, d_beta_cell = [
        each.squeeze(0) if sums == 1 else each.sum(0)
        for each in (d_gamma, d_shift, d_gamma_cell, d_beta_cell)
    ]
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
        **{name: d.clone() for name, d in zip(PEEPHOLES, d_peephole, strict=True)},
        "gamma_input": d_gamma_input,
        "gamma_hidden": d_gamma,
        "gamma_cell": d_gamma_cell,
        "beta_cell": d_beta_cell,
    }
    # an operator's results may not share memory, not even those without elements
    return Gradients._make(
        [
            inputs.x.new_empty(0) if grad is None or getattr(inputs, name) is None else grad
            for name, grad in zip(Gradients._fields, map(grads.get, Gradients._fields), strict=True)
        ]
    )


def _gradient_of_frames(plan: Plan, d_output: Tensor | None, d_h: Tensor | None) -> Tensor:
    """Return the gradient of h of all frames, of the output and of the last frames."""
    if d_output is None:
        frames = plan.inputs.x.new_zeros(plan.frames, plan.H, dtype=plan.wide)
    else:
        frames = plan.pack(d_output.to(plan.wide))
        if d_h is not None and frames.data_ptr() == d_output.data_ptr():
            # autograd may hand the same gradient to other functions
            frames = frames.clone()
    if d_h is not None:
        plan.add_to_last(frames, d_h.to(plan.wide))
    return frames


def _row_moments(plan: Plan, z: Tensor, x: Tensor, c: Tensor) -> list[Tensor]:
    """Return mean and variance of each row of the hidden and the cell site, where they have any."""
    values = Sites(None, z.float() + x if plan.options.joint else z, c[: plan.frames])
    absent = [c.new_empty(0)] * 2
    return [
        moment
        for site in ("hidden", "cell")
        for moment in (
            absent
            if getattr(plan.scopes, site) == "off"
            else passes.row_moments(getattr(values, site), plan.blocks(site), centred=not plan.rms)
        )
    ]
