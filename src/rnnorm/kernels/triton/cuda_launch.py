"""Many steps of a pass in one launch of a kernel in CUDA C++."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rnnorm.kernels.cuda import persistent
from rnnorm.kernels.cuda.arguments import extra_of
from rnnorm.kernels.cuda.layout import Layout
from rnnorm.kernels.cuda.passes import groups_of
from rnnorm.kernels.triton.plan import Plan, Source


def launch(
    plan: Plan,
    layout: Layout,
    steps: tuple[int, int],
    sites: tuple[tuple[Source, Source], list[Tensor]],
    states: tuple[Tensor | None, Tensor],
    earlier: int | None,
    *,
    later: int | None = None,
    **tensors: Tensor | None,
) -> None:
    """Run a pass of some steps in one launch.

    Args:
        plan: plan of the call.
        layout: how the launch shares the work.
        steps: the first step and the one after the last.
        sites: the sources of the statistics of the hidden and the cell site, and the tensors of
            both; going back with a norm by row, the statistics of ``row_moments``.
        states: the states beside h at first, None if there are none, and those of all frames.
        earlier: the first frame of the step before, None if there is no such step.
        later: rows of the step after these in the backward pass, None in the forward pass.
        **tensors: those of ``ForwardArguments`` or ``BackwardArguments``.

    Raises:
        RefusedError: if the kernel does not run.
    """
    (hidden, out), (gamma, shift, mean, var, gamma_out, shift_out, mean_out, var_out) = sites
    x = tensors["x"]
    assert x is not None
    options, inputs = plan.options, plan.inputs
    variant = persistent.Variant(
        backward=later is not None,
        cell=options.cell,
        weights=tuple([slot for slot, each in enumerate(inputs.peepholes) if each is not None]),
        hidden=hidden.scope,
        out=out.scope,
        joint=options.joint,
        shifted=plan.shift_hidden is not None,
        precision=persistent.precision_of(plan.given),
        wide_x=x.dtype == plan.wide,
        groups=groups_of(options),
        centred=not plan.rms,
        resets=inputs.reset is not None,
        drops=plan.drops,
        carry=options.carry,
    )
    kernel = persistent.ready(variant, layout, x.device)
    if kernel is None:
        raise persistent.RefusedError("the kernel of many steps does not run")
    first, every = states
    before = first if earlier is None else every[..., earlier:, :]
    tensors["starts"] = plan.first_frames
    if first is not None:
        tensors["before"] = before
    numbers: dict[str, Any] = {
        "before_pitch": before.stride(0) if before is not None and before.dim() > 2 else 0,
        "pitch": every.stride(0) if every.dim() > 2 else 0,
        "first": steps[0],
        "stop": steps[1],
        "units": plan.H,
        "eps": plan.eps,
    }
    if later is not None:
        numbers["later"], tensors["states"] = later, every
    persistent.run(
        kernel,
        variant,
        layout,
        tensors,
        numbers,
        (
            (gamma, shift, mean, var, hidden.row, hidden.skip, hidden.pitch),
            (gamma_out, shift_out, mean_out, var_out, out.row, out.skip, out.pitch),
        ),
        extra_of(inputs, options),
    )


def row_moments(
    values: Tensor, widths: list[tuple[int, int]], *, centred: bool = True
) -> list[Tensor]:
    """Return mean and biased variance of each row, ``(N, groups)``, over each group of columns.

    Args:
        values: ``(N, F)``.
        widths: first column of each group and the one after its last.
        centred: whether there is a mean; else it is zero, and the variance is the mean square.
    """
    variances, means = [], []
    for start, stop in widths:
        group = values[:, start:stop].float()
        if centred:
            variance, mean = torch.var_mean(group, 1, correction=0, keepdim=True)
        else:
            variance = group.square().mean(1, keepdim=True)
            mean = torch.zeros_like(variance)
        variances.append(variance)
        means.append(mean)
    return [each[0] if len(each) == 1 else torch.cat(each, 1) for each in (means, variances)]
