"""The backward pass: for each step one launch and one product, or for many steps one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rnnorm.kernels.inputs import (
    PEEPHOLES,
    Gradients,
    Inputs,
    Options,
    Results,
    Sites,
    separated,
)
from rnnorm.kernels.triton import cuda_launch, loop, step
from rnnorm.kernels.triton.forward import keeps_fresh, recurrent_product
from rnnorm.kernels.triton.input_term import finish, undo
from rnnorm.kernels.triton.plan import Plan


class _Saved(NamedTuple):
    """The results of the forward pass that the backward pass reads, of all frames.

    Args:
        x: raw input terms.
        z: raw recurrent terms.
        narrow: h in the dtype of the output, projected if there is a projection.
        h: h in as many digits as the backward pass needs.
        c: the states beside h; ``narrow`` stands in where there are none.
        fresh: c as its site saw it.
        made: h before it is projected, without elements if it is not.
        moments: the statistics that were taken.
    """

    x: Tensor
    z: Tensor
    narrow: Tensor
    h: Tensor
    c: Tensor
    fresh: Tensor
    made: Tensor
    moments: Sites


class _Written(NamedTuple):
    """The gradients that the steps write, and their sums over all steps.

    The sums of a norm by row have a row for each row of the batch. The product, and the first of
    both buffers of carried gradients, end as the gradients of the initial states.

    Args:
        x: gradient of the finished input terms of all frames.
        z: gradient of the recurrent terms of all frames.
        operand: what a second recurrent product has multiplied, of all frames.
        product: gradient that reaches h of the step before through the recurrent product.
        carried: gradient that reaches the states beside h, of which a step reads one buffer and
            writes the other.
        carried_h: gradient that reaches h beside the product, alike.
        peephole: sums for the weights by unit.
        gamma: sums for the recurrent or joint site.
        shift: sums for that site's shift.
        gamma_cell: sums for the cell or carry site.
        beta_cell: sums for that site's shift.
    """

    x: Tensor
    z: Tensor
    operand: Tensor
    product: Tensor
    carried: Tensor
    carried_h: Tensor
    peephole: Tensor
    gamma: Tensor
    shift: Tensor
    gamma_cell: Tensor
    beta_cell: Tensor


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
    saved = _saved(plan, results)
    d_output, d_h, d_c, _ = upstream
    d_h_frames = _gradient_of_frames(plan, d_output, d_h)
    written = _allocate(plan)
    several = (*options.several, plan.B, plan.H)
    d_c = inputs.h0.new_zeros(several, dtype=plan.wide) if d_c is None else d_c.to(plan.wide)
    _run_steps(plan, saved, d_h_frames, d_c, written)
    return _gradients(plan, saved, d_h_frames, written, wants_x)


def _saved(plan: Plan, results: Results) -> _Saved:
    """Return the parts of the forward pass's results by name."""
    z_x, z_h, saved_c, saved_third = results.saved
    frames = plan.T * plan.B
    narrow = plan.pack(results.output)
    h = saved_third[:frames] if plan.options.skips and plan.narrow else narrow
    c = saved_c if saved_c.numel() else narrow
    fresh = separated(c, 2)[0]
    if keeps_fresh(plan.inputs, plan.options):
        fresh = saved_third[-frames:]
    z_x, z_h = z_x[: plan.frames], z_h[: plan.frames]
    made = results.saved_made[: plan.frames]
    return _Saved(z_x, z_h, narrow, h, c, fresh, made, results.moments)


def _allocate(plan: Plan) -> _Written:
    """Return what the steps write, with zeros where they add."""
    options, x, wide = plan.options, plan.inputs.x, plan.wide
    B, H, width = plan.B, plan.H, plan.gates * plan.H
    carried = carried_h = x.new_empty(2, *options.several, B, H, dtype=wide)
    if options.has_c and (options.skips or plan.drops):
        # the gradient of an h that skips the product, or is kept by zoneout
        carried_h = x.new_empty(2, B, H, dtype=wide)
    rows = B if plan.by_row else 1
    two = options.first_gates < options.gates
    co = plan.inputs.weight_co
    last = 1 if co is None else len(co) // H
    return _Written(
        x.new_empty(plan.frames, width),
        x.new_empty(plan.frames, width),
        x.new_empty(plan.frames if two else 0, H),
        x.new_empty(B, plan.H_out),
        carried,
        carried_h,
        x.new_zeros(len(PEEPHOLES) - 1 + last, H, dtype=wide),
        *[x.new_zeros(rows, size, dtype=wide) for size in (width, width, H, H)],
    )


def _run_steps(plan: Plan, saved: _Saved, d_h: Tensor, d_c: Tensor, written: _Written) -> None:
    """Run the steps in reverse.

    Args:
        plan: plan of the call.
        saved: what the forward pass left.
        d_h: gradient of h of all frames; to that of a projected h the steps add what reaches it
            through the next step.
        d_c: gradient of the last states beside h.
        written: what the steps write.
    """
    inputs, options, taken = plan.inputs, plan.options, saved.moments
    z, h, c = saved.z, saved.h, saved.c
    d_x, d_z, product = written.x, written.z, written.product
    carried, carried_h = written.carried, written.carried_h
    sums = (written.gamma, written.shift, written.gamma_cell, written.beta_cell)
    # the statistics that the forward pass took are not overwritten
    mean, var = (torch.empty_like(moment) for moment in taken.input)
    # its memory is free again for the products after the steps
    x = finish(saved.x, plan, inputs.gamma_input, (mean, var))
    state = h if inputs.c0 is None else c
    before = inputs.h0 if inputs.c0 is None else inputs.c0
    later = 0
    # the gradient of h as the cell made it, and the part of it that comes through the next step
    d_made, through_next = d_h, product
    if inputs.weight_hr is not None:
        d_made = inputs.x.new_empty(plan.frames, plan.H)
        through_next = inputs.x.new_zeros(plan.B, plan.H)
    of_h = options.first_gates * plan.H
    d_z_of_h, weight_hh = d_z[:, :of_h], inputs.weight_hh[:of_h]
    layout = plan.layout(back=True)
    moments = _row_moments(plan, z, x, saved.fresh) if layout is not None and plan.by_row else []
    for first, stop in reversed(plan.runs(layout, back=True)):
        start, n = plan.starts[first], plan.sizes[first]
        earlier = plan.starts[first - 1] if first else 0
        hidden, out, sites = plan.sites(first, taken)
        variant = plan.variant(hidden, out)
        if stop == first + 1 and not plan.cuda:
            grid, how = plan.launch(n)
            if inputs.weight_hr is not None:
                frames = slice(start, start + n)
                d_h[start : start + later] += product[:later]
                torch.mm(d_h[frames].to(plan.given), inputs.weight_hr, out=d_made[frames])
            step.backward[grid](
                x, z, state if first else before, c, *sites,
                d_made, through_next, carried[stop % 2], d_c, d_x, d_z, carried[first % 2], *sums,
                start, earlier, n, later,
                hidden.row, hidden.pitch, out.row, out.pitch, plan.H, S=variant, **how,
            )  # fmt: skip
        elif layout is not None:
            if plan.by_row:
                sites = [*sites[:2], *moments[:2], *sites[4:6], *moments[2:]]
            cuda_launch.launch(
                plan, layout, (first, stop), ((hidden, out), sites),
                states=(inputs.c0, c), earlier=earlier if first else None, later=later,
                x=x, z=z, before_h=h[earlier:] if first else inputs.h0, h=h,
                output=d_h, product=product, carried=carried[stop % 2], last=d_c,
                carry=carried[first % 2], carried_h=carried_h[stop % 2],
                carry_h=carried_h[first % 2], d_x=d_x, d_z=d_z, operand=written.operand,
                d_gamma=written.gamma, d_shift=written.shift,
                d_gamma_out=written.gamma_cell, d_shift_out=written.beta_cell,
                d_weight=written.peephole, weight=inputs.weight_hh,
            )  # fmt: skip
        else:
            grid, how = plan.launch(n, looped=True)
            loop.backward[grid](
                x, z, state, c, *sites,
                d_h, product, carried, d_c, d_x, d_z, *sums, inputs.weight_hh,
                plan.first_frames, plan.count(), first, stop, hidden.row, hidden.skip,
                hidden.pitch, out.row, out.skip, out.pitch, later, plan.B, plan.H,
                S=variant, **how,
            )  # fmt: skip
        recurrent_product(d_z_of_h[start : start + n], weight_hh, product[:n])
        later = n


def _gradients(
    plan: Plan, saved: _Saved, d_h: Tensor, written: _Written, wants_x: bool
) -> Gradients:
    """Return the gradients of the inputs, from what the steps wrote, also to ``d_h``."""
    inputs, options = plan.inputs, plan.options
    # of the terms that are products with h, and of those of a second product
    d_z, d_second = written.z.tensor_split((options.first_gates * plan.H,), 1)
    d_weight_hr = None
    if inputs.weight_hr is not None:
        d_weight_hr = d_h.to(plan.given).t() @ saved.made
    d_z_x, d_gamma_input, d_shift_input = undo(
        written.x, saved.x, plan, inputs.gamma_input, saved.moments.input
    )
    d_weight_ih = d_z_x.t() @ plan.pack(inputs.x)
    begin = plan.sizes[0]
    first = plan.seen(inputs.h0.to(plan.given), slice(begin))
    others = plan.seen(plan.before(saved.narrow), slice(begin, None))
    if plan.independent:
        d_weight_hh = (d_z[:begin] * first).sum(0) + (d_z[begin:] * others).sum(0)
    else:
        d_weight_hh = (d_z[:begin].t() @ first).addmm_(d_z[begin:].t(), others)
    if options.first_gates < options.gates:
        d_weight_hh = torch.cat((d_weight_hh, d_second.t() @ written.operand))
    d_h0 = plan.seen(written.product.to(plan.wide), slice(begin))
    if options.skips or inputs.mask_zoneout_h is not None:
        d_h0 = d_h0 + written.carried_h[0]
    d_gamma, d_hidden, d_gamma_cell, d_beta_cell = [
        each.squeeze(0) if len(each) == 1 else each.sum(0)
        for each in (written.gamma, written.shift, written.gamma_cell, written.beta_cell)
    ]
    if options.separate:
        d_bias_ih, d_bias_hh = d_shift_input, d_hidden
    else:
        d_bias_ih = d_hidden if options.joint else d_shift_input
        d_bias_hh = d_bias_ih.clone()
    grads = {
        "x": plan.unpack(d_z_x @ inputs.weight_ih) if wants_x else None,
        "h0": d_h0,
        "c0": written.carried[0],
        "weight_ih": d_weight_ih,
        "weight_hh": d_weight_hh,
        "bias_ih": d_bias_ih,
        "bias_hh": d_bias_hh,
        **{
            name: d.flatten().clone()
            for name, weight, d in zip(
                PEEPHOLES, inputs.peepholes, written.peephole.tensor_split((1, 2)), strict=True
            )
            if weight is not None
        },
        "weight_hr": d_weight_hr,
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
        frames = plan.inputs.x.new_zeros(plan.frames, plan.H_out, dtype=plan.wide)
    else:
        frames = plan.pack(d_output.to(plan.wide))
        changed = d_h is not None or plan.inputs.weight_hr is not None
        if changed and frames.data_ptr() == d_output.data_ptr():
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
            else cuda_launch.row_moments(
                getattr(values, site), plan.blocks(site), centred=not plan.rms
            )
        )
    ]
