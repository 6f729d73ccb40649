"""The forward pass: for each step one product and one launch, or for many steps one launch."""

from __future__ import annotations

import torch
from torch import Tensor

from rnnorm.kernels.inputs import Inputs, Options
from rnnorm.kernels.triton import loop, step
from rnnorm.kernels.triton.input_term import finish
from rnnorm.kernels.triton.plan import Plan


def forward_shapes(
    inputs: Inputs, options: Options, save: bool
) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Of output, h_n, c_n, three sites' mean and variance, and what backward needs.

    That is ``W_x x``, ``W_h h`` and c of every frame, and h where the output has fewer digits and
    a GRU needs them. No shape depends on the sizes; frames stand packed at the front.
    """
    T, B, _ = inputs.x.shape
    H, given = inputs.weight_hh.size(1), inputs.x.dtype
    wide = torch.promote_types(given, torch.float32)
    has_c, gates = options.has_c, options.gates
    shapes: list[tuple[tuple[int, ...], torch.dtype]] = [
        ((T, B, H), given),
        ((B, H), wide),
        ((B, H) if has_c else (0,), wide),
    ]
    for scope, width in zip(options.scopes.split(","), (gates * H, gates * H, H), strict=True):
        taken = options.min_rows >= 0 and scope in ("frame", "sequence")
        shape = (1 if scope == "sequence" else T, width) if taken else (0,)
        shapes += [(shape, wide)] * 2
    for kept, width, dtype in (
        (True, gates * H, given),
        (True, gates * H, given),
        (options.cell == "GRU" and wide != given, H, wide),
        (has_c, H, wide),
    ):
        shapes.append(((T * B, width) if save and kept else (0,), dtype))
    return shapes


def run_forward(inputs: Inputs, options: Options, save: bool) -> list[Tensor]:
    """Runs the pass, without autograd; results as in ``forward_shapes``."""
    plan = Plan(inputs, options)
    shapes = forward_shapes(inputs, options, save)[3:]
    # a moment stays zero where no statistic is taken
    moments = [inputs.x.new_zeros(shape, dtype=dtype) for shape, dtype in shapes[:6]]
    taken = list(zip(moments[::2], moments[1::2], strict=True))
    saved = [inputs.x.new_empty(shape, dtype=dtype) for shape, dtype in shapes[6:]]
    frames, width = plan.T * plan.B, plan.gates * plan.H
    z_x, z_h = (kept if kept.numel() else inputs.x.new_empty(frames, width) for kept in saved[:2])
    # no view, which would not take detach_()
    output = inputs.x.new_empty(plan.T, plan.B, plan.H)
    h = narrow = output.flatten(0, 1)
    if plan.narrow:
        kept = saved[2]
        h = kept if kept.numel() else inputs.x.new_empty(frames, plan.H, dtype=plan.wide)
    c = h
    if inputs.c0 is not None:
        c = saved[3] if save else torch.empty_like(h)
    torch.mm(plan.pack(inputs.x), inputs.weight_ih.t(), out=z_x[: plan.frames])
    x = finish(z_x[: plan.frames], plan, inputs.gamma_input, taken[0])
    state = inputs.h0 if inputs.c0 is None else inputs.c0
    seen, earlier, weight = inputs.h0.to(narrow.dtype), 0, inputs.weight_hh.t()
    for first, stop in plan.runs(back=False):
        start, n = plan.starts[first], plan.sizes[first]
        hidden, out, sites = plan.sites(first, taken)
        variant = plan.step(hidden, out)
        if stop == first + 1:
            torch.mm(seen[:n], weight, out=z_h[start : start + n])
            grid, how = plan.launch(n)
            step.forward[grid](
                x, z_h, state, c, h, narrow, *sites,
                start, earlier, n, hidden.row, hidden.pitch, out.row, out.pitch, plan.H,
                S=variant, **how,
            )  # fmt: skip
        else:
            grid, how = plan.launch(n, looped=True)
            loop.forward[grid](
                x, z_h, c, c, h, narrow, weight.contiguous(), *sites,
                plan.first_frames, plan.count(), first, stop, hidden.row, hidden.skip,
                hidden.pitch, out.row, out.skip, out.pitch, plan.H, S=variant, **how,
            )  # fmt: skip
        earlier = plan.starts[stop - 1]
        seen, state = narrow[earlier : earlier + plan.sizes[stop - 1]], c
    h_n = plan.last(h[: plan.frames])
    c_n = inputs.x.new_empty(0, dtype=plan.wide) if c is h else plan.last(c[: plan.frames])
    if plan.ragged:
        output = plan.unpack(narrow[: plan.frames])
    return [output, h_n, c_n, *moments, *saved]
