"""A plot of pen strokes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# consecutive segments have different colours
_COLOURS = ("C0", "C1", "C2", "C3")


def plot_strokes(
    axes: Axes,
    drawings: Sequence[Tensor],
    columns: int = 5,
    given: int = 0,
    boundaries: Sequence[Tensor] | None = None,
) -> None:
    """Draw characters beside each other, in rows.

    Each character gets its own square; all have the same scale.

    Args:
        axes: axes to draw on.
        drawings: ``(N, 3)`` each: for every point its offset from the point before, y downwards,
            and whether the pen is lifted after it (not 0).
        columns: number of drawings in a row.
        given: lines to this many first points are grey: the part that a model was given.
        boundaries: ``(N,)`` for each drawing: more than 1/2 where a segment ends at a point, such
            as the boundaries of a layer of :class:`rnnorm.HMLSTM`. Consecutive segments have
            different colours, also where ``given`` would be grey. None draws in black.

    Raises:
        ValueError: if there is no drawing, one is not ``(N, 3)`` with at least one point, or the
            shapes of the boundaries do not fit.
    """
    if not drawings:
        raise ValueError("drawings must have one or more, got none")
    if boundaries is not None and [z.shape for z in boundaries] != [d.shape[:1] for d in drawings]:
        raise ValueError(
            f"boundaries must be {[tuple(d.shape[:1]) for d in drawings]}, as many as points, got "
            f"{[tuple(z.shape) for z in boundaries]}"
        )
    placed = []
    for points in drawings:
        if points.dim() != 2 or points.size(1) != 3 or not len(points):
            raise ValueError(f"drawings must be (N, 3) each, got {tuple(points.shape)}")
        points = points.detach().double().cpu()
        at = points[:, :2].cumsum(0)
        low, high = at.aminmax(dim=0)
        placed.append((at - (low + high) / 2, points[:, 2] != 0, float((high - low).max())))
    side = 1.2 * max(size for *_, size in placed) or 1.0
    for number, (at, lifted, _) in enumerate(placed):
        x = (at[:, 0] + side * (number % columns)).tolist()
        y = (at[:, 1] + side * (number // columns)).tolist()
        colours = ["0.6" if k < given else "black" for k in range(len(x))]
        if boundaries is not None:
            ended = (boundaries[number].detach().cpu() > 0.5).cumsum(0).tolist()
            colours = [_COLOURS[segment % len(_COLOURS)] for segment in [0, *ended[:-1]]]
        for k in range(len(x)):
            if k and not lifted[k - 1]:
                axes.plot(x[k - 1 : k + 1], y[k - 1 : k + 1], color=colours[k], linewidth=1.2)
            elif lifted[k]:
                # a stroke of one point, such as the dot of an i
                axes.plot(x[k], y[k], ".", color=colours[k], markersize=2)
    rows = -(-len(placed) // columns)
    axes.set_xlim(-side / 2, (min(columns, len(placed)) - 0.5) * side)
    axes.set_ylim((rows - 0.5) * side, -side / 2)
    axes.set_aspect("equal")
    axes.set_axis_off()
