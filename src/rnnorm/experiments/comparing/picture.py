"""Learning curves against steps and against seconds, as one picture."""

from __future__ import annotations

import io
import itertools
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rnnorm.experiments.files import refuse_folder, write_whole
from rnnorm.experiments.trained.curve import Curve, at_shared_steps, by_model, mean_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Look(NamedTuple):
    """How the lines of a model look.

    Attributes:
        colour: as ``#rrggbb``.
        dashes: a line style of matplotlib.
    """

    colour: str
    dashes: str


# told apart also by the colour-blind
COLOURS = ("#767676", "#c8442c", "#2467a8", "#2c8a57", "#8a4fa3")
_LOOKS = [Look(colour, dashes) for dashes in ("-", "--", ":", "-.") for colour in COLOURS]
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
    # drawn again, it has the same ids
    "svg.hashsalt": "rnnorm",
}


def draw(
    curves: Sequence[Curve],
    path: str | Path,
    *,
    label: str,
    title: str = "",
    goal: float | None = None,
) -> None:
    """Draw each model's mean over its seeds as a line, with a band from lowest to highest.

    Args:
        curves: of one or several models.
        path: the picture, ``.png``, ``.svg`` or ``.pdf``.
        label: what the score is.
        title: above both panels.
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
        # outside the panels: a curve may pass anywhere within
        lines = by_steps.get_legend_handles_labels()
        columns = 3 if max(map(len, lines[1]), default=0) < 25 else 1
        make_room(figure, lines[1], columns)
        figure.legend(*lines, frameon=False, loc="outside lower left", ncols=columns, fontsize=11)
        seeds = len({c.seed for c in curves})
        if seeds > 1:
            title += f"\nmean of {seeds} seeds, band from lowest to highest"
        first, _, rest = as_text(title).partition("\n")
        figure.suptitle(first, fontsize=13, fontweight="bold", x=0.01, ha="left")
        by_steps.set_title(rest, fontsize=10, loc="left", color="#555555")
        data = io.BytesIO()
        figure.savefig(data, format=path.suffix[1:] or "png")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data.getbuffer())


def refuse_name(path: str | Path) -> None:
    """Refuse a name that :func:`draw` could write no picture to.

    Raises:
        IsADirectoryError: if it is a folder.
        ValueError: if matplotlib knows no such format.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    path = Path(path)
    refuse_folder(path)
    if path.suffix and path.suffix[1:].lower() not in FigureCanvasBase.get_supported_filetypes():
        raise ValueError(f"a picture must end with .png, .svg, .pdf or the like, got {path}")


def looks_of(models: Iterable[str]) -> dict[str, Look]:
    """The look of each model, in the order in which they are named."""
    return dict(zip(dict.fromkeys(models), itertools.cycle(_LOOKS)))


def as_text(words: str) -> str:
    """Words as a picture shows them: matplotlib reads dollars as the signs of mathematics."""
    return words.replace("$", r"\$")


def in_lines(name: str) -> str:
    """A model's name for a legend: with all that was changed it may be wider than the picture."""
    # a legend leaves out what begins with an underscore
    blank = " " if name.startswith("_") else ""
    return as_text(blank + textwrap.fill(name, 40))


def make_room(figure: Figure, labels: Sequence[str], columns: int = 1) -> None:
    """Make a figure higher where a legend would leave its panels none of the height."""
    lines = sum(label.count("\n") + 1 for label in labels) / columns
    figure.set_figheight(figure.get_figheight() + 0.2 * max(0, lines - 6))


@contextmanager
def styled_figure(width: float, height: float) -> Iterator[Figure]:
    """An empty figure of so many inches, in the style of all pictures."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE), warnings.catch_warnings():
        # a name may have characters that the font lacks, which are drawn as boxes
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield Figure(figsize=(width, height), layout="constrained", dpi=160)


def draw_curves(
    axes: Axes,
    curves: Sequence[Curve],
    against: str,
    label: str,
    looks: Mapping[str, Look] | None = None,
) -> None:
    """Draw each model's mean over its seeds as a line, with a band from lowest to highest.

    Args:
        axes: where to draw.
        curves: of one or several models.
        against: ``"steps"``, ``"epochs"`` or ``"seconds"``.
        label: what the score is.
        looks: of each model, by default in their order.
    """
    looks = looks or looks_of(c.model for c in curves)
    for model, whole in by_model(curves).items():
        if own := [c for c in whole if getattr(c, against)]:
            own, mean = at_shared_steps(own), mean_curve(own)
            _line(axes, getattr(mean, against), mean.values, own, model, looks[model])
    axes.set(
        xlabel=against if against == "epochs" else f"training {against}", ylabel=as_text(label)
    )
    axes.set_xlim(left=0)
    axes.tick_params(length=0)


def _line(
    axes: Axes,
    x: Sequence[float],
    mean: Sequence[float],
    own: Sequence[Curve],
    model: str,
    look: Look,
) -> None:
    colour, dashes = look
    # a single point would have no line
    mark = "o" if len(mean) == 1 else ""
    axes.plot(
        x, mean, color=colour, linestyle=dashes, marker=mark, linewidth=2.2, label=in_lines(model)
    )
    if len(own) > 1:
        values = np.array([c.values for c in own])
        axes.fill_between(x, values.min(0), values.max(0), color=colour, alpha=0.16, linewidth=0)
