"""Style and curves that the pictures of comparisons, reports and the page of results share."""

from __future__ import annotations

import itertools
import math
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rnnorm.experiments.trained.curve import (
    Curve,
    at_shared_steps,
    by_model,
    mean_curve,
    training_scores_kept,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Look(NamedTuple):
    """The style of a model's lines.

    Attributes:
        colour: colour ``#rrggbb``.
        dashes: a line style of matplotlib.
    """

    colour: str
    dashes: str


# colours that the colour-blind can distinguish
COLOURS = ("#767676", "#c8442c", "#2467a8", "#2c8a57", "#8a4fa3")
_LOOKS = [Look(colour, dashes) for dashes in ("-", "--", ":", "-.") for colour in COLOURS]
_TRAINED: Any = {"linestyle": (0, (1, 1.5)), "linewidth": 1.4}
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
    # a fixed salt gives a picture that is drawn again the same ids
    "svg.hashsalt": "rnnorm",
}


def looks_of(models: Iterable[str]) -> dict[str, Look]:
    """Assign a look to each model: the usual one of its norm, in whatever order the models come.

    A model whose name tells no norm, or not the first one of its norm, gets the next look that is
    not a usual one of these models.
    """
    names = dict.fromkeys(models)
    looks: dict[str, Look] = {}
    for name in names:
        usual = _usual(name)
        if usual is not None and usual not in looks.values():
            looks[name] = usual
    free = [look for look in _LOOKS if look not in looks.values()] or _LOOKS
    left = zip([name for name in names if name not in looks], itertools.cycle(free))
    looks |= dict(left)
    return {name: looks[name] for name in names}


# words of a model's name that tell its norm, in the order of the looks; the first of them decides
_NORMS = (
    (re.compile(r"norm=(?:batch|cooijmans|laurent|joint|carry)"), 1),
    (re.compile(r"norm=(?:layer|ba2016|rms)"), 2),
    (re.compile(r"\bbn(?![a-z])|batch"), 1),
    (re.compile(r"\bln(?![a-z])|layer"), 2),
    (re.compile(r"lstm|gru|rnn|baseline"), 0),
)


def _usual(model: str) -> Look | None:
    """Return the look of the norm that a model's name tells, None if it tells none."""
    # the paper in front of a recipe's name is not of its norm
    name = model.rpartition("/")[2].lower() if "norm=" not in model else model.lower()
    return next((_LOOKS[look] for pattern, look in _NORMS if pattern.search(name)), None)


def escape_dollars(words: str) -> str:
    """Escape the dollars of a text, which matplotlib would read as mathematics."""
    return words.replace("$", r"\$")


def in_lines(name: str) -> str:
    """Wrap a model's name for a legend: with all changes it may be wider than the picture."""
    # matplotlib leaves names that begin with an underscore out of a legend
    blank = " " if name.startswith("_") else ""
    return escape_dollars(blank + textwrap.fill(name, 40))


def make_room(figure: Figure, labels: Sequence[str], columns: int = 1) -> None:
    """Make a figure higher if a long legend would leave no height for its panels."""
    lines = sum(label.count("\n") + 1 for label in labels) / columns
    figure.set_figheight(figure.get_figheight() + 0.2 * max(0, lines - 6))


@contextmanager
def styled_figure(width: float, height: float) -> Iterator[Figure]:
    """Make an empty figure of a size in inches, in the style of all pictures."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE), warnings.catch_warnings():
        # characters of a name that the font lacks are drawn as boxes
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield Figure(figsize=(width, height), layout="constrained", dpi=160)


def draw_curves(
    axes: Axes,
    curves: Sequence[Curve],
    against: str,
    label: str,
    looks: Mapping[str, Look] | None = None,
) -> None:
    """Draw the mean over each model's seeds, and a band from lowest to highest, on axes.

    A dotted line is the mean of the training scores, where all seeds kept them.

    Args:
        axes: the axes.
        curves: curves of one or several models.
        against: ``"steps"``, ``"epochs"`` or ``"seconds"``.
        label: name of the score.
        looks: look of each model, by default in the order of the models.
    """
    looks = looks or looks_of(c.model for c in curves)
    for model, whole in by_model(curves).items():
        if own := [c for c in whole if getattr(c, against)]:
            own, mean = at_shared_steps(own), mean_curve(own)
            _line(axes, getattr(mean, against), mean.values, own, model, looks[model])
            trained = zip(getattr(mean, against), mean.trained, strict=False)
            if ended := [point for point in trained if math.isfinite(point[1])]:
                # one epoch makes no line
                mark = "." if len(ended) == 1 else ""
                x, y = zip(*ended, strict=True)
                axes.plot(x, y, color=looks[model].colour, marker=mark, **_TRAINED)
    if training_scores_kept(curves):
        axes.plot([], [], color="#444444", label="in training", **_TRAINED)
    axes.set(
        xlabel=against if against == "epochs" else f"training {against}",
        ylabel=escape_dollars(label),
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
    # a single point makes no line, so it gets a mark
    mark = "o" if len(mean) == 1 else ""
    axes.plot(
        x, mean, color=colour, linestyle=dashes, marker=mark, linewidth=2.2, label=in_lines(model)
    )
    if len(own) > 1:
        values = np.array([c.values for c in own])
        axes.fill_between(x, values.min(0), values.max(0), color=colour, alpha=0.16, linewidth=0)
