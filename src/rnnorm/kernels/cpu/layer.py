"""The CPU kernel with the reference's signature, and what it does not cover."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rnnorm.cells.cell import Cell, State, Weights
from rnnorm.kernels.call import Coverage, Mask, Request
from rnnorm.kernels.cpu.forward import PASSES
from rnnorm.kernels.cpu.problem import COMPUTED
from rnnorm.kernels.inputs import CELLS, PLACES, inputs_of, options_of, taken_of
from rnnorm.norm.merged_moments import ActiveRows
from rnnorm.norm.moments import Moments
from rnnorm.norm.spec import Norm


COVERAGE = Coverage(
    CELLS,
    PLACES,
)


def refuses(request: Request) -> str:
    """Says why the kernel does not compute a layer, empty if it does."""
    if request.device.type != "cpu":
        return f"it runs on the CPU, not on {request.device.type}"
    if request.exported == "onnx":
        return "onnx has no such operator"
    return COVERAGE.refuses(request)


def layer(
    cell: Cell,
    norm: Norm | None,
    x: Tensor,
    batch_sizes: Tensor | None,
    state: State,
    weights: Weights,
    gamma: Mapping[str, Tensor],
    beta: Mapping[str, Tensor],
    constants: Mapping[str, Moments],
    min_rows: int | None,
    step: int | Tensor = 0,
    masks: Mapping[str, Mask] | None = None,
    *,
    rows: ActiveRows | None = None,
) -> tuple[Tensor, State, dict[str, Moments]]:
    """As ``reference.layer``; half types are computed in float32, no cell here asks for ``step``.

    With ``rows``, as ``synchronized.layer``.

    Raises:
        MemoryError: scratch memory could not be allocated.
        RuntimeError: a parameter has another shape than the layer's; torch.distributed's own, where
            another rank is missing.
    """
    active = cell.active_sites(norm)
    wide = x.dtype if x.dtype in COMPUTED else torch.float32
    inputs = inputs_of(
        cell,
        active,
        x,
        batch_sizes,
        state,
        weights,
        gamma,
        beta,
        constants,
        masks,
        narrow=wide,
        wide=wide,
    )
    results = PASSES(inputs, options_of(cell, norm, min_rows, masks), rows)
    output, *state_n = [
        result if result.dtype == like.dtype else result.to(like.dtype)
        for result, like in zip(results, (x, *state), strict=False)
    ]
    return output, tuple(state_n), taken_of(norm, active, min_rows, results)
