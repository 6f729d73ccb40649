"""Learning curves against steps and against seconds, as one picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rnnorm.experiments.checkpoints import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rnnorm.experiments.demo import Curve

# told apart also by the colour-blind
_COLOURS = ("#767676", "#c8442c", "#2467a8", "#2c8a57", "#8a4fa3")
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.edgecolor": "#9a9a9a",
    "axes.labelcolor": "#222222",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "text.color": "#222222",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
}


def draw(curves: Sequence[Curve], path: str | Path, title: str | None = None) -> None:
    """Draw each model's mean over its seeds as a line, with a band from lowest to highest.

    Args:
        curves: of one or several models, all with the same number of points.
        path: the picture, ``.png``, ``.svg`` or ``.pdf``.
        title: above both panels.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = Path(path)
    title = title or "Permuted digits, one pixel a step: LSTM with and without normalisation"
    with rc_context(_STYLE):
        figure = Figure(figsize=(10, 4.3), layout="constrained", dpi=160)
        FigureCanvasAgg(figure)
        by_steps, by_seconds = figure.subplots(1, 2, sharey=True)
        models = list(dict.fromkeys(c.model for c in curves))
        for model, colour in zip(models, _COLOURS, strict=False):
            own = [c for c in curves if c.model == model]
            _line(by_steps, own, np.mean([c.steps for c in own], axis=0), colour)
            _line(by_seconds, own, np.mean([c.seconds for c in own], axis=0), colour)
        by_steps.set(xlabel="training steps", ylabel="validation accuracy, %")
        by_seconds.set(xlabel="seconds of training")
        for axes in (by_steps, by_seconds):
            axes.set_xlim(left=0)
            axes.tick_params(length=0)
        by_steps.legend(frameon=False, loc="lower right", fontsize=11)
        seeds = len({c.seed for c in curves})
        if seeds > 1:
            title += f"\nmean of {seeds} seeds, band from lowest to highest"
        first, _, rest = title.partition("\n")
        figure.suptitle(first, fontsize=13, fontweight="bold", x=0.01, ha="left")
        by_steps.set_title(rest, fontsize=10, loc="left", color="#555555")
        data = io.BytesIO()
        figure.savefig(data, format=path.suffix[1:] or "png")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data.getbuffer())


def _line(axes: Axes, curves: Sequence[Curve], x: Any, colour: str) -> None:
    y = np.array([c.accuracy for c in curves])
    axes.plot(x, y.mean(0), color=colour, linewidth=2.2, label=curves[0].model)
    if len(curves) > 1:
        axes.fill_between(x, y.min(0), y.max(0), color=colour, alpha=0.16, linewidth=0)
