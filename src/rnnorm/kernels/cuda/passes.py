"""Many steps of a pass in one launch of a kernel in CUDA C++."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rnnorm.kernels.call import UncoveredError
from rnnorm.kernels.cuda import persistent
from rnnorm.kernels.cuda.arguments import extra_of
from rnnorm.kernels.cuda.layout import MOST_ROWS, Gpu, Layout, lay_out
from rnnorm.kernels.cuda.persistent import RefusedError, Variant
from rnnorm.kernels.inputs import CELL_OF_NAME, Inputs, Options
from rnnorm.kernels.precision import float32_precision
from rnnorm.kernels.triton.layer import proven

if TYPE_CHECKING:
    # the module imports Triton
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
    x, units = inputs.x, inputs.hidden_size
    if inputs.weight_hr is not None or not proven(CELL_OF_NAME[options.cell]):
        return None
    if len(x) < 2 or why_not_multiplied(x.dtype, rectified=options.rectified):
        return None
    by_row = "row" in options.by_site[1:]
    if by_row and units <= (_FEW_UNITS_RAGGED if ragged else _FEW_UNITS):
        return None
    evaluated = not by_row and options.min_rows < 0
    if not (ragged or evaluated) and x.size(1) * units > _MANY_STATES:
        return None
    gpu = persistent.gpu_of(x.device)
    return gpu and _lay_out(gpu, inputs, options, back)


def asked_layout(inputs: Inputs, options: Options, *, back: bool) -> Layout:
    """Return how a launch shares the work of a call for which ``use_backend`` asks.

    Raises:
        UncoveredError: if the kernels do not run the call.
    """
    x = inputs.x
    gpu = persistent.gpu_or_why(x.device)
    why = gpu if isinstance(gpu, str) else ""
    if why := why or why_not_multiplied(x.dtype, rectified=options.rectified):
        raise UncoveredError(
            f"the kernels in CUDA C++ do not run this layer, because {why}: leave out "
            "rnnorm.use_backend('cuda')"
        )
    assert isinstance(gpu, Gpu)
    layout = _lay_out(gpu, inputs, options, back)
    if layout is None:
        raise UncoveredError(
            f"the kernels in CUDA C++ take up to {MOST_ROWS} rows, and as many units "
            f"as the shared memory of this GPU has room for, got {x.size(1)} rows and "
            f"{inputs.h0.size(1)} units of {x.dtype}: leave out rnnorm.use_backend('cuda')"
        )
    return layout


def why_not_multiplied(dtype: torch.dtype, *, rectified: bool) -> str:
    """Say why numbers of a type are not multiplied, empty if they are.

    Args:
        dtype: type of the numbers.
        rectified: whether h is the output of a rectifier.
    """
    precision = persistent.precision_of(dtype, float32_precision())
    if not precision:
        return f"it multiplies no {dtype}"
    # three products of tf32 are as exact as one of float32, except where a number is infinite
    return "it multiplies h of relu in tf32 alone" if precision == "FP32" and rectified else ""


def _lay_out(gpu: Gpu, inputs: Inputs, options: Options, back: bool) -> Layout | None:
    return lay_out(
        gpu,
        backward=back,
        gates=options.gates,
        rows=inputs.x.size(1),
        units=inputs.h0.size(1),
        half=inputs.x.dtype != torch.float32,
        groups=groups_of(options),
    )


def groups_of(options: Options) -> int:
    """Return how many statistics a row of the hidden term has, 0 with statistics over rows."""
    by_row = {*options.by_site[1:]} - {"off", "frame"}
    return options.blocks_of(options.by_site.hidden) if by_row else 0


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
    variant = Variant(
        backward=later is not None,
        cell=options.cell,
        weights=tuple([slot for slot, each in enumerate(inputs.peepholes) if each is not None]),
        hidden=hidden.scope,
        out=out.scope,
        joint=options.joint,
        shifted=plan.shift_hidden is not None,
        precision=persistent.precision_of(plan.given, float32_precision()),
        wide_x=x.dtype == plan.wide,
        groups=groups_of(options),
        centred=not plan.rms,
        resets=inputs.reset is not None,
        drops=plan.drops,
        carry=options.carry,
    )
    kernel = persistent.ready(variant, layout, x.device)
    if kernel is None:
        raise RefusedError("the kernel of many steps does not run")
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
