"""The check that the trace of a user's cell computes what its step does."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes

from rnnorm.cells.cell import Cell, Weights
from rnnorm.kernels import reference
from rnnorm.kernels.call import LayerCall, LayerResult, Mask
from rnnorm.kernels.equations.graph_cell import GraphCell
from rnnorm.kernels.own_call import graph_call
from rnnorm.norm.spec import CELL_SITES, Norm


def difference(cell: Cell, graph_cell: GraphCell, norm: Norm | None) -> str:
    """Compare a step with its graph on random numbers in float64, with gradients.

    Returns:
        where they differ, empty where they do not.
    """
    T, B, features, units = 3, 4, 2, 16 * cell.heads
    generator = torch.Generator().manual_seed(0)

    leaves: list[Tensor] = []

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        numbers = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        leaves.append(numbers.mul_(scale).requires_grad_())
        return numbers

    hooked = torch._C._autograd._saved_tensors_hooks_is_enabled()  # type: ignore[attr-defined]
    with (
        _disable_current_modes(),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        torch.device("cpu"),
        torch.autograd.set_detect_anomaly(False),
        # the innermost hooks alone are called: torch.utils.checkpoint would count what is saved
        saved_tensors_hooks(Tensor.detach, Tensor.detach) if hooked else nullcontext(),
    ):
        drawn = {
            # small weights keep states, and so rounding errors, small
            name: draw(*shape, scale=shape[-1] ** -0.5 if len(shape) > 1 else 1.0)
            for name, shape in cell.weights(features, units, True).items()
        }
        own = {name: drawn.pop(name) for name in [*drawn] if name not in Weights._fields}
        specs = cell.norms(norm)
        call = LayerCall(
            cell=cell,
            norm=norm,
            x=draw(T, B, features),
            batch_sizes=None,
            state=tuple([draw(B, units) for _ in cell.states]),
            weights=Weights(**{"weight_hh": None, **drawn}, own=own),  # type: ignore[arg-type]
            gamma={site: draw(sum(cell.blocks(site, units))) for site in specs},
            beta={site: draw(units) for site in specs if site in CELL_SITES},
            constants={},
            min_rows=2,
            masks={
                place: Mask(draw(T, B, units) > 0, 2.0)
                for place in ("hidden", "candidate")
                if place in cell.dropouts
            },
        )
        try:
            want, found = (
                _differentiated(reference.layer(each), leaves)
                for each in (call, graph_call(graph_cell, call))
            )
        except RuntimeError as error:
            # an operator that works in place, for example
            return f"its step raised {type(error).__name__} when it was differentiated: {error}"
    names = ["output", *cell.states, *["gradient"] * len(leaves)]
    for name, one, other in zip(names, want, found, strict=True):
        largest = one.nan_to_num(0, 0, 0).abs().max().item() if one.numel() else 0.0
        if not torch.allclose(one, other, rtol=1e-9, atol=1e-9 * max(1.0, largest), equal_nan=True):
            return f"its {name} is not what the trace of its step says, as after operators in place"
    return ""


def _differentiated(result: LayerResult, leaves: list[Tensor]) -> list[Tensor]:
    """Return the output, the states, and the gradients of the leaves for some loss."""
    values = [result.output, *result.state]
    parts = [
        (v.flatten() * torch.cos(torch.arange(v.numel(), dtype=v.dtype) + k)).sum()
        for k, v in enumerate(values)
    ]
    loss = torch.stack(parts).sum()
    values = [v.detach() for v in values]
    if not loss.requires_grad:
        return [*values, *[torch.zeros_like(leaf) for leaf in leaves]]
    grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    # of an unused leaf, an older torch's zeros require a gradient
    return [*values, *[grad.detach() for grad in grads]]
