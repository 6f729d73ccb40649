"""The CPU kernel with the reference's signature, and what it does not cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rnnorm.cells.cell import Cell, State, Weights
from rnnorm.kernels.cpu.forward import Synchronized, Unobserved, cpu_forward, run_forward
from rnnorm.kernels.inputs import (
    COVERED,
    GATES,
    LEAVES,
    PEEPHOLES,
    PLACES,
    Inputs,
    options_of,
    sites_of,
)
from rnnorm.kernels.mask import Mask
from rnnorm.norm.merged_moments import ActiveRows
from rnnorm.norm.moments import Moments
from rnnorm.norm.spec import BatchNorm, Norm
from rnnorm.tracing import unobserved

#: what the kernel computes in
COMPUTED = (torch.float32, torch.float64)
_DTYPES = (*COMPUTED, torch.bfloat16, torch.float16)


def refuses(cell: Cell, norm: Norm | None, device: torch.device, dtype: torch.dtype) -> str:
    """Why the kernel does not cover a layer, empty if it does."""
    sites = cell.active_sites(norm)
    if device.type != "cpu":
        return f"it runs on the CPU, not on {device.type}"
    if cell not in COVERED:
        return f"it has no {cell}"
    if dtype not in _DTYPES:
        return f"it has no {dtype}"
    if "carry" in sites:
        return "it does not normalise the carried cell"
    if torch._C._are_functorch_transforms_active():
        return "its operators have no torch.func transforms"
    if forward_ad._current_level >= 0:
        return "its operators have no forward-mode derivative"
    return ""


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
    sites = sites_of(active)
    wide = x.dtype if x.dtype in COMPUTED else torch.float32

    def ready(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or (tensor.dtype == wide and tensor.is_contiguous()):
            return tensor
        return tensor.to(wide).contiguous()

    if batch_sizes is None:
        batch_sizes = torch.full((x.size(0),), x.size(1), dtype=torch.int64, device="cpu")
    statistics = [m for site in sites for m in constants.get(site, (None, None))]
    units = state[0].size(1)
    dropped = [masks.get(place) if masks else None for place in PLACES]
    inputs = Inputs._make(
        [
            ready(x),
            batch_sizes.contiguous(),
            ready(state[0]),
            ready(state[1]) if len(state) > 1 else None,
            *map(ready, weights[:4]),
            *[ready(weights.own.get(name)) for name in PEEPHOLES],
            *[ready(gamma.get(site)) for site in sites],
            ready(beta.get("cell")),
            *[ready(m.detach() if m is not None and m.requires_grad else m) for m in statistics],
            *[None if mask is None else _each_unit(mask.drawn, units) for mask in dropped],
        ]
    )
    check_shapes(inputs, GATES[cell.name])
    options = options_of(cell, norm, min_rows, dropped)
    differentiable = torch.is_grad_enabled() and any(
        [tensor is not None and tensor.requires_grad for tensor in inputs]
    )
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
    taken = {}
    if isinstance(norm, BatchNorm) and min_rows is not None:
        for k, site in enumerate(sites):
            if site in active:
                taken[site] = (results[3 + 2 * k], results[4 + 2 * k])
    return output, tuple(state_n), taken


def check_shapes(inputs: Inputs, gates: int) -> None:
    """Refuses parameters beyond whose end the kernel would read.

    Raises:
        RuntimeError: one has another shape than that of a layer of so many gates and the units of
            its state.
    """
    units = inputs.h0.size(1)
    gates *= units
    matrices = ((gates, inputs.x.size(2)), (gates, units))
    row, unit = (gates,), (units,)
    shapes = (*matrices, row, row, unit, unit, unit, row, row, unit, unit)
    for k, (given, shape) in enumerate(zip(inputs[4:LEAVES], shapes, strict=True), 4):
        if given is not None and given.shape != shape:
            raise RuntimeError(
                f"{Inputs._fields[k]} must have shape {shape}, got {tuple(given.shape)}"
            )


def _each_unit(drawn: Tensor, units: int) -> Tensor:
    return drawn.expand(-1, -1, units).contiguous()
