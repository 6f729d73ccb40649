"""Many steps of a pass in one launch of a kernel in CUDA C++."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rnnorm.kernels.cuda import persistent
from rnnorm.kernels.cuda.persistent import Layout, RefusedError, Variant
from rnnorm.kernels.inputs import Inputs, Options
from rnnorm.kernels.precision import float32_precision

if TYPE_CHECKING:
    # which imports Triton
    from rnnorm.kernels.triton.plan import Plan, Source


# on an H200, Triton's kernel of many steps was faster for layer norm up to so many units
_FEW_UNITS, _FEW_UNITS_RAGGED = 128, 256
# on an H200, a CUDA graph with one product and one launch for each step was faster in training
# where h of a step, rows times units, has more numbers than this
_MANY_STATES = 1 << 14


def layout_of(inputs: Inputs, options: Options, *, back: bool, ragged: bool) -> Layout | None:
    """Return how a launch shares the work, None if the kernels do not run this call.

    Args:
        inputs: inputs of both passes.
        options: options of both passes.
        back: whether the backward pass is launched.
        ragged: whether some rows end before the last step.
    """
    x, units = inputs.x, inputs.weight_hh.size(1)
    gpu = persistent.gpu_of(x.device)
    if gpu is None or len(x) < 2:
        return None
    precision = persistent.precision_of(x.dtype, float32_precision())
    # three products of tf32 are as exact as one of float32, except where a number is infinite
    if not precision or (precision == "FP32" and options.rectified):
        return None
    by_row = "row" in options.by_site
    if by_row and units <= (_FEW_UNITS_RAGGED if ragged else _FEW_UNITS):
        return None
    evaluated = not by_row and options.min_rows < 0
    if not (ragged or evaluated) and x.size(1) * units > _MANY_STATES:
        return None
    return persistent.lay_out(
        gpu,
        backward=back,
        gates=options.gates,
        rows=x.size(1),
        units=units,
        half=x.dtype != torch.float32,
        over_units=by_row,
    )


def _launch(
    plan: Plan,
    layout: Layout,
    steps: tuple[int, int],
    tensors: dict[str, Tensor | None],
    sites: tuple[tuple[Source, Source], list[Tensor]],
    *,
    later: int | None = None,
) -> None:
    """Launch a pass for some steps.

    Args:
        plan: plan of the call.
        layout: how the launch shares the work.
        steps: the first step and the one after the last.
        tensors: tensors by name in the kernel's arguments.
        sites: where the hidden and the cell site have their statistics, and their tensors.
        later: rows of the step after these in the backward pass, None in the forward pass.

    Raises:
        RefusedError: if the kernel does not run.
    """
    (hidden, out), (gamma, shift, mean, var, gamma_out, shift_out, mean_out, var_out) = sites
    x = tensors["x"]
    assert x is not None
    step = plan.step(hidden, out)
    variant = Variant(
        later is not None,
        step.cell,
        step.gates,
        step.hidden,
        step.out,
        plan.by_row,
        step.joint,
        step.shifted,
        persistent.precision_of(plan.given, float32_precision()),
        x.dtype == plan.wide,
    )
    launch = persistent.ready(variant, layout, x.device)
    if launch is None:
        raise RefusedError("the kernel of many steps does not run")
    numbers: dict[str, Any] = {
        "first": steps[0],
        "stop": steps[1],
        "units": plan.H,
        "eps": plan.eps,
    }
    if later is not None:
        numbers["later"] = later
    persistent.run(
        launch,
        variant,
        layout,
        tensors,
        numbers,
        (
            (gamma, shift, mean, var, hidden.row, hidden.skip, hidden.pitch),
            (gamma_out, shift_out, mean_out, var_out, out.row, out.skip, out.pitch),
        ),
    )


def forward(
    plan: Plan,
    layout: Layout,
    steps: tuple[int, int],
    sites: tuple[tuple[Source, Source], list[Tensor]],
    **tensors: Tensor | None,
) -> None:
    """Run the forward pass of some steps.

    Args:
        plan: plan of the call.
        layout: how the launch shares the work.
        steps: the first step and the one after the last.
        sites: where the hidden and the cell site have their statistics, and their tensors.
        **tensors: those of ``ForwardArguments``.

    Raises:
        RefusedError: if the kernel does not run.
    """
    _launch(plan, layout, steps, {**tensors, "starts": plan.first_frames}, sites)


def backward(
    plan: Plan,
    layout: Layout,
    steps: tuple[int, int],
    sites: tuple[tuple[Source, Source], list[Tensor]],
    later: int,
    **tensors: Tensor | None,
) -> None:
    """Run the backward pass of some steps.

    Args:
        plan: plan of the call.
        layout: how the launch shares the work.
        steps: the first step and the one after the last.
        sites: where the hidden and the cell site have their statistics, and their tensors; with
            layer norm, the statistics of ``row_moments``.
        later: rows of the step after these.
        **tensors: those of ``BackwardArguments``.

    Raises:
        RefusedError: if the kernel does not run.
    """
    _launch(plan, layout, steps, {**tensors, "starts": plan.first_frames}, sites, later=later)


def row_moments(values: Tensor, widths: list[tuple[int, int]]) -> list[Tensor]:
    """Return mean and biased variance of each row, ``(N, groups)``, over each group of columns."""
    pairs = [
        torch.var_mean(values[:, start:stop].float(), 1, correction=0, keepdim=True)
        for start, stop in widths
    ]
    if len(pairs) == 1:
        return [*reversed(pairs[0])]
    return [torch.cat([pair[k] for pair in pairs], 1) for k in (1, 0)]
