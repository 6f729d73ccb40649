"""A plot of the boundaries that a hierarchical multiscale LSTM finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# white where there is no boundary
_COLOURS = "Greys"


def plot_boundaries(axes: Axes, z: Tensor, symbols: Sequence[str] | None = None) -> None:
    """Draw the boundaries of one sequence: a row for each layer, the lowest at the bottom.

    The plot follows figure 3 of Chung et al. 2016. A boundary is black; soft boundaries and
    probabilities are darker the larger they are.

    Args:
        axes: axes to draw on.
        z: ``(T, L - 1)``, one sequence's part of what :class:`rnnorm.HMLSTM` returns.
        symbols: labels below the steps, such as the characters read.

    Raises:
        ValueError: if ``z`` is not a matrix with at least one step and layer, or the numbers of
            steps and symbols differ.
    """
    if z.dim() != 2 or not z.numel():
        raise ValueError(f"z must be (T, L - 1) with at least one of each, got {tuple(z.shape)}")
    if symbols is not None and len(symbols) != len(z):
        raise ValueError(f"symbols must be {len(z)}, one for each step, got {len(symbols)}")
    axes.pcolormesh(z.detach().float().cpu().T.numpy(), cmap=_COLOURS, vmin=0, vmax=1)
    layers = z.size(1)
    axes.set_yticks([k + 0.5 for k in range(layers)], [f"layer {k + 1}" for k in range(layers)])
    for k in range(1, layers):
        axes.axhline(k, color="0.8", linewidth=0.8)
    if symbols is None:
        axes.set_xlabel("time step t")
        return
    axes.set_xticks([t + 0.5 for t in range(len(z))])
    axes.set_xticklabels(symbols, parse_math=False)
    axes.tick_params(axis="x", length=0)
