"""How far the first input is felt: the derivative of every output by the first step's input."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from rnnorm.diagnostics.gradient_flow import find_layer, plot_by_step
from rnnorm.kernels.dispatch import use_backend
from rnnorm.model.synchronize import set_ranks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# rows of a pass: more would take more memory, not less time
_ROWS = 512


def first_input_influence(model: nn.Module, x: Tensor) -> Tensor:
    r"""Compute how far the first input is felt in the output of every step.

    .. math::
        \Big\|\frac{\partial h_t}{\partial x_1}\Big\|_F

    over all units and inputs of a row, and the root of its mean square over the rows: what Graves
    2012 draws as shades for a plain RNN (fig. 4.1) and an LSTM (fig. 4.4). A copy of the layer runs
    in evaluation, on the reference kernel: batch norm uses its population statistics, nothing is
    random, and rows do not see each other.

    Args:
        model: a recurrent layer of this package or of ``torch.nn``, in one direction.
        x: sequences ``(T, B, I)`` of the same length, ``(B, T, I)`` with ``batch_first``. Rows and
            inputs determine the cost: the layer runs on ``B I`` rows in all.

    Returns:
        ``(T,)``, the first step first.

    Raises:
        ValueError: if the model is no such layer, or one of ``torch.nn`` with hooks or a
            ``forward`` of its own, or ``x`` has not three dimensions.
    """
    if not isinstance(model, nn.RNNBase):
        raise ValueError(f"model must be a recurrent layer, got {type(model).__name__}")
    if x.dim() != 3:
        raise ValueError(f"x must be (T, B, I) or (B, T, I), got shape {tuple(x.shape)}")
    copied, layer = find_layer(set_ranks(copy.deepcopy(model), None), None)
    copied.eval()
    time, rows = (1, 0) if layer.batch_first else (0, 1)
    inputs, B = x.size(2), x.size(rows)
    # rows do not see each other: one pass has several inputs, each with rows of its own
    together = max(1, _ROWS // max(1, B))
    squares: Any = 0.0
    # inference mode has no derivatives at all
    with torch.inference_mode(False), torch.no_grad(), use_backend("reference"):
        for first in range(0, inputs, together):
            count = min(together, inputs - first)
            wide = torch.cat([x] * count, rows)
            direction = torch.zeros_like(wide)
            for k in range(count):
                direction.select(time, 0)[k * B : (k + 1) * B, first + k] = 1
            with forward_ad.dual_level():
                output = copied(forward_ad.make_dual(wide, direction))[0]  # type: ignore[no-untyped-call]
                change = forward_ad.unpack_dual(output).tangent  # type: ignore[no-untyped-call]
            squares = squares + change.square().sum(2).unflatten(rows, (count, B)).sum(rows)
    influence: Tensor = squares.mean(rows).sqrt()
    return influence


def plot_first_input_influence(axes: Axes, influence: Mapping[str, Tensor]) -> None:
    """Draw the influence of the first input against the time step, on a logarithmic scale.

    Args:
        axes: axes to draw on.
        influence: values ``(T,)`` of :func:`first_input_influence` by label of the legend.
    """
    plot_by_step(axes, influence, "‖∂h_t/∂x_1‖")
