"""Choose the passes that the kernels in CUDA C++ run, and how a launch shares the work."""

from __future__ import annotations

import torch

from rnnorm.kernels.call import UncoveredError
from rnnorm.kernels.cuda import persistent
from rnnorm.kernels.cuda.layout import MOST_ROWS, Gpu, Layout, lay_out
from rnnorm.kernels.gpu import proven
from rnnorm.kernels.inputs import Inputs, Options
from rnnorm.kernels.known_cells import CELL_OF_NAME

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
            f"the kernels in CUDA C++ take 1 to {MOST_ROWS} rows, and as many units "
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
    precision = persistent.precision_of(dtype)
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
