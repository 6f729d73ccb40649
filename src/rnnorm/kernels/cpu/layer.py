"""The CPU kernel with the reference's signature, and what it does not cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rnnorm.cells.cell import Cell, State, Weights
from rnnorm.kernels.covered import uncovered
from rnnorm.kernels.cpu.forward import Synchronized, Unobserved, cpu_forward, run_forward
from rnnorm.kernels.inputs import LEAVES, Inputs, inputs_of, options_of, taken_of
from rnnorm.kernels.mask import Mask
from rnnorm.norm.merged_moments import ActiveRows
from rnnorm.norm.moments import Moments
from rnnorm.norm.spec import Norm
from rnnorm.tracing import unobserved

#: what the kernel computes in
COMPUTED = (torch.float32, torch.float64)


def refuses(cell: Cell, norm: Norm | None, device: torch.device, dtype: torch.dtype) -> str:
    """Why the kernel does not cover a layer, empty if it does."""
    if device.type != "cpu":
        return f"it runs on the CPU, not on {device.type}"
    return uncovered(cell, norm, dtype)


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
    options = options_of(cell, norm, min_rows, masks)
    differentiable = inputs.differentiable
    results: Sequence[Tensor]
    as_operator = rows is None and not unobserved(inputs)
    if not as_operator and any([t is not None and t.is_neg() for t in inputs[:LEAVES]]):
        # before an operator PyTorch does so itself
        inputs = Inputs._make([None if t is None else t.resolve_neg() for t in inputs])
    if as_operator:
        results = cpu_forward(*inputs, *options, differentiable)
    elif differentiable:
        moments: list[Tensor] = []
        function = Unobserved if rows is None else Synchronized
        results = function.apply(*inputs[:LEAVES], inputs[LEAVES:], options, rows, moments)  # type: ignore[no-untyped-call]
        results = (*results, *moments)
    else:
        results = run_forward(inputs, options, save=False, rows=rows)
    output, *state_n = [
        result if result.dtype == like.dtype else result.to(like.dtype)
        for result, like in zip(results, (x, *state), strict=False)
    ]
    return output, tuple(state_n), taken_of(norm, active, min_rows, results)
