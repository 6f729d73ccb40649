"""The legend of figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def legend_above(axes: Axes) -> None:
    """Add a legend above the panel, where it covers nothing, in as many columns as fit."""
    labels = axes.get_legend_handles_labels()[1]
    if labels:
        columns = max(1, 40 // (max(map(len, labels)) + 4))
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns)
