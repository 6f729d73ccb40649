"""One figure of a report: drawn, or the reason why not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from rnnorm.experiments.comparing.picture import Look, make_room, styled_figure
from rnnorm.experiments.reporting.svg import as_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Picture(NamedTuple):
    """A figure, or why there is none.

    Attributes:
        title: what it shows.
        caption: how it was made, or why it was left out.
        svg: the figure, None where it was left out.
        description: the figure in words.
    """

    title: str
    caption: str
    svg: str | None = None
    description: str = ""


@contextmanager
def or_why(title: str) -> Iterator[list[Picture]]:
    """Collects pictures; what cannot be drawn becomes a line that says why."""
    pictures: list[Picture] = []
    try:
        yield pictures
    except ValueError as error:
        pictures.append(Picture(title, f"{error}"))


def cycle(looks: Iterable[Look]) -> dict[str, list[Any]]:
    """What matplotlib takes for one line after the other."""
    colours, dashes = zip(*looks, strict=True)
    return {"color": list(colours), "linestyle": list(dashes)}


def shades(colour: str, count: int) -> dict[str, list[Any]]:
    """One colour from light to full, for what belongs to one model or none."""
    return {
        "color": [colour] * count,
        "alpha": [0.3 + 0.7 * i / count for i in range(1, count + 1)],
    }


def draw(
    title: str,
    caption: str,
    plot: Callable[[Axes], None],
    looks: Mapping[str, Sequence[Any]] | None = None,
    legend: bool = False,
) -> Picture:
    """A small picture, legible on a phone.

    Args:
        title: what it shows.
        caption: how it was made.
        plot: draws it on axes.
        looks: of one line after the other, as matplotlib's ``set_prop_cycle`` takes it.
        legend: whether it needs one below.
    """
    with styled_figure(4.8, 3.6) as figure:
        axes = figure.subplots()
        if looks:
            axes.set_prop_cycle(**looks)
        plot(axes)
        handles, labels = axes.get_legend_handles_labels()
        make_room(figure, labels)
        if legend and labels:
            figure.legend(handles, labels, frameon=False, loc="outside lower left", fontsize=10)
        svg = as_svg(figure)
    return Picture(title, caption, svg, _in_words(axes, labels))


def _in_words(axes: Axes, labels: Sequence[str]) -> str:
    """The axes of a figure, and what is drawn on them."""
    against = f"{axes.get_ylabel()} against {axes.get_xlabel()}".removesuffix(" against ")
    drawn = ", ".join(" ".join(label.split()) for label in labels)
    words = ": ".join(part for part in (against.strip(), drawn) if part)
    # as_text has put them there
    return words.replace(r"\$", "$")
