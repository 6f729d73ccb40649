"""The picture of a comparison: learning curves against steps and against seconds."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from rnnorm.experiments.pictures import draw_curves, escape_dollars, make_room, styled_figure
from rnnorm.experiments.trained.curve import Curve
from rnnorm.experiments.writing import check_output_file, write_whole


def draw(
    curves: Sequence[Curve],
    path: str | Path,
    *,
    label: str,
    title: str = "",
    goal: float | None = None,
) -> None:
    """Draw the mean over each model's seeds, and a band from lowest to highest, into a file.

    Args:
        curves: curves of one or several models.
        path: the picture, ``.png``, ``.svg`` or ``.pdf``.
        label: name of the score.
        title: title above both panels.
        goal: a score to mark.
    """
    path = Path(path)
    with styled_figure(10, 4.3) as figure:
        by_steps, by_seconds = figure.subplots(1, 2, sharey=True)
        draw_curves(by_steps, curves, "steps", label)
        draw_curves(by_seconds, curves, "seconds", "")
        if goal is not None:
            for axes in (by_steps, by_seconds):
                axes.axhline(goal, color="#9a9a9a", linestyle=":", linewidth=1.2)
        # the legend is outside the panels, since curves may pass anywhere inside
        lines = by_steps.get_legend_handles_labels()
        columns = 3 if max(map(len, lines[1]), default=0) < 25 else 1
        make_room(figure, lines[1], columns)
        figure.legend(*lines, frameon=False, loc="outside lower left", ncols=columns, fontsize=11)
        seeds = len({c.seed for c in curves})
        if seeds > 1:
            title += f"\nmean of {seeds} seeds, band from lowest to highest"
        first, _, rest = escape_dollars(title).partition("\n")
        figure.suptitle(first, fontsize=13, fontweight="bold", x=0.01, ha="left")
        by_steps.set_title(rest, fontsize=10, loc="left", color="#555555")
        data = io.BytesIO()
        figure.savefig(data, format=path.suffix[1:] or "png")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data.getvalue())


def refuse_name(path: str | Path) -> None:
    """Refuse a path to which :func:`draw` cannot write a picture.

    Raises:
        IsADirectoryError: if the path is a folder.
        NotADirectoryError: if a folder above it is a file.
        ValueError: if matplotlib does not know the format.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    path = Path(path)
    check_output_file(path)
    if path.suffix and path.suffix[1:].lower() not in FigureCanvasBase.get_supported_filetypes():
        raise ValueError(f"a picture must end with .png, .svg, .pdf or the like, got {path}")
