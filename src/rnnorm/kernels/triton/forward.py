"""The forward pass: for each step one product and one launch, or for many steps one launch."""

from __future__ import annotations

import torch
from torch import Tensor

from rnnorm.kernels.inputs import (
    DIFFERENTIABLE,
    RESULTS,
    Inputs,
    Options,
    Results,
    separated,
)
from rnnorm.kernels.triton import cuda_launch, loop, step
from rnnorm.kernels.triton.input_term import finish
from rnnorm.kernels.triton.plan import Plan


def forward_shapes(
    inputs: Inputs, options: Options, save: bool
) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and dtype of each of ``Results``.

    Saved of every frame are ``W_x x``, ``W_h h``, the states beside h, h where the backward pass
    needs more digits than the output has (then c as its site saw it, where it is stored
    otherwise), and h before it is projected, in this order. No shape depends on the sizes; frames
    stand packed at the front.
    """
    T, B, _ = inputs.x.shape
    H, H_out, given = inputs.hidden_size, inputs.h0.size(1), inputs.x.dtype
    wide = torch.promote_types(given, torch.float32)
    has_c, gates = options.has_c, options.gates
    shapes: list[tuple[tuple[int, ...], torch.dtype]] = [
        ((T, B, H_out), given),
        ((B, H_out), wide),
        ((*options.several, B, H) if has_c else (0,), wide),
        ((*options.several, T, B, H) if options.wants_all_c else (0,), wide),
    ]
    for scope, width in zip(options.by_site, (gates * H, gates * H, H), strict=True):
        taken = options.min_rows >= 0 and scope in ("frame", "sequence")
        shape = (1 if scope == "sequence" else T, width) if taken else (0,)
        shapes += [(shape, wide)] * 2
    third = (options.skips and wide != given) + keeps_fresh(inputs, options)
    for kept, form, dtype in (
        (True, (T * B, gates * H), given),
        (True, (T * B, gates * H), given),
        (has_c, (*options.several, T * B, H), wide),
        (third > 0, (third * T * B, H), wide),
        (inputs.weight_hr is not None, (T * B, H), given),
    ):
        shapes.append((form if save and kept else (0,), dtype))
    return shapes


def keeps_fresh(inputs: Inputs, options: Options) -> bool:
    """Tell whether the backward pass needs c as its site saw it: its row is normalised."""
    changed = inputs.mask_zoneout_c is not None or options.carry
    return changed and options.by_site.cell in ("row", "rms")


def run_forward(inputs: Inputs, options: Options, save: bool, *, cuda: bool = False) -> Results:
    """Run the forward pass, without autograd; the results have the shapes of ``forward_shapes``.

    Args:
        inputs: inputs of the pass.
        options: options of the pass.
        save: whether a backward pass follows.
        cuda: whether the kernels in CUDA C++ run all steps.

    Raises:
        UncoveredError: if ``cuda`` is set and the kernels in CUDA C++ do not run the call.
    """
    plan = Plan(inputs, options, cuda=cuda)
    results = _allocate(plan, save)
    output, taken = results.output, results.moments
    frames, width = plan.T * plan.B, plan.gates * plan.H
    z_x, z_h, saved_c, saved_third = results.saved
    z_x, z_h = (z if z.numel() else inputs.x.new_empty(frames, width) for z in (z_x, z_h))
    weight_hr = inputs.weight_hr
    # h as the next step reads it, and as the cell makes it
    h = narrow = projected = output.flatten(0, 1)
    if weight_hr is not None:
        h = narrow = results.saved_made if save else inputs.x.new_empty(frames, plan.H)
    if plan.narrow:
        h = saved_third[: frames if options.skips else 0]
        h = h if h.numel() else inputs.x.new_empty(frames, plan.H, dtype=plan.wide)
    fresh = saved_third[-frames:] if save and keeps_fresh(inputs, options) else None
    c = h
    if inputs.c0 is not None:
        c = saved_c
        c = c if save else inputs.x.new_empty(*options.several, frames, plan.H, dtype=plan.wide)
    torch.mm(plan.pack(inputs.x), inputs.weight_ih.t(), out=z_x[: plan.frames])
    x = finish(z_x[: plan.frames], plan, inputs.gamma_input, taken.input)
    state = inputs.h0 if inputs.c0 is None else inputs.c0
    seen, earlier, weight = inputs.h0.to(plan.given), 0, inputs.weight_hh.t()
    layout = plan.layout(back=False)
    if cuda and save:
        # refuse a call now if the kernels cannot run its backward pass
        plan.layout(back=True)
    for first, stop in plan.runs(layout, back=False):
        start, n = plan.starts[first], plan.sizes[first]
        hidden, out, sites = plan.sites(first, taken)
        variant = plan.variant(hidden, out)
        if stop == first + 1 and not cuda:
            recurrent_product(seen[:n], weight, z_h[start : start + n])
            grid, how = plan.launch(n)
            step.forward[grid](
                x, z_h, state, c, h, narrow, *sites,
                start, earlier, n, hidden.row, hidden.pitch, out.row, out.pitch, plan.H,
                S=variant, **how,
            )  # fmt: skip
            if weight_hr is not None:
                torch.mm(narrow[start : start + n], weight_hr.t(), out=projected[start : start + n])
        elif layout is not None:
            cuda_launch.launch(
                plan, layout, (first, stop), ((hidden, out), sites),
                states=(inputs.c0, c), earlier=earlier if first else None,
                x=x, z=z_h if save else None, before_h=h[earlier:] if first else inputs.h0,
                c=c, fresh=fresh, h=h if plan.narrow else None, narrow=narrow, seen=seen,
                weight=inputs.weight_hh,
            )  # fmt: skip
        else:
            grid, how = plan.launch(n, looped=True)
            loop.forward[grid](
                x, z_h, c, c, h, narrow, weight.contiguous(), *sites,
                plan.first_frames, plan.count(), first, stop, hidden.row, hidden.skip,
                hidden.pitch, out.row, out.skip, out.pitch, plan.H, S=variant, **how,
            )  # fmt: skip
        earlier = plan.starts[stop - 1]
        seen, state = projected[earlier : earlier + plan.sizes[stop - 1]], c
    ends = h if weight_hr is None else projected
    h_n = plan.last(ends[: plan.frames]).to(plan.wide)
    c_n = inputs.x.new_empty(0, dtype=plan.wide)
    if c is not h:
        each_last = [plan.last(each[: plan.frames]) for each in separated(c, 2)]
        c_n = each_last[0] if len(each_last) == 1 else torch.stack(each_last)
        if options.wants_all_c:
            for every, each in zip(separated(results.all_c, 3), separated(c, 2), strict=True):
                every.copy_(plan.unpack(each[: plan.frames]))
    if plan.ragged:
        output = plan.unpack(projected[: plan.frames])
    return results._replace(output=output, h_n=h_n, c_n=c_n)


def recurrent_product(left: Tensor, weight: Tensor, out: Tensor) -> None:
    """Multiply by a matrix, or by a vector that stands for a diagonal one."""
    (torch.mul if weight.dim() == 1 else torch.mm)(left, weight, out=out)


def _allocate(plan: Plan, save: bool) -> Results:
    """Return the results before the pass has run; the final states come after its last step."""
    new_empty, new_zeros = plan.inputs.x.new_empty, plan.inputs.x.new_zeros
    shapes = forward_shapes(plan.inputs, plan.options, save)
    made = {}
    for name, (shape, dtype) in zip(RESULTS, shapes, strict=True):
        if name not in DIFFERENTIABLE or name == "all_c":
            # a moment stays zero where no statistic is taken
            partly = name.startswith("taken_") and not plan.takes_all
            made[name] = (new_zeros if partly else new_empty)(shape, dtype=dtype)
    # no view, which would not take detach_()
    output = new_empty(plan.T, plan.B, plan.H_out)
    return Results(output=output, h_n=output, c_n=output, **made)
