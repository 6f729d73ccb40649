"""One figure of a report: drawn as a part of the page, or the reason why not."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from rnnorm.experiments.comparing.picture import COLOURS, Look, make_room, styled_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
def pictures_or_reason(title: str) -> Iterator[list[Picture]]:
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


# the colours of a page by their names in its style sheet: in the light, and in the dark
_IN_THE_DARK = ("#a8a8a8", "#f0806a", "#6aaee8", "#57bd86", "#c08fd6")
SHADES = {
    "paper": ("#ffffff", "#16181b"),
    "ink": ("#222222", "#e6e6e6"),
    "ticks": ("#444444", "#c4c4c4"),
    "note": ("#555555", "#adadad"),
    "edge": ("#9a9a9a", "#80838a"),
    "grid": ("#e6e6e6", "#33363c"),
    **{f"model-{i}": pair for i, pair in enumerate(zip(COLOURS, _IN_THE_DARK, strict=True), 1)},
}
# the other way round
NAMES = {light: name for name, (light, _) in SHADES.items()}
_COLOUR = re.compile(rf"(?<=: )({'|'.join(NAMES)})\b")
_ID = re.compile(r'(\bid="|href="#|url\(#)')


def as_svg(figure: Figure) -> str:
    """A figure without a ground, whose colours follow the style sheet of the page."""
    data = io.StringIO()
    # no date and no addresses of vocabularies
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(data, format="svg", metadata=metadata, transparent=True)
    text = data.getvalue()
    return _COLOUR.sub(lambda found: f"var(--{NAMES[found[0]]})", text[text.index("<svg") :])


def in_page(svg: str, name: str, title: str, description: str) -> str:
    """The figure with what a page needs that holds several.

    Args:
        svg: what :func:`as_svg` returned.
        name: what its ids begin with, another one for each figure of the page.
        title: what it is called, for those who do not see it.
        description: what it shows, for them.
    """
    own = _ID.sub(rf"\g<1>{name}-", svg)
    said = (
        f'<svg role="img" aria-labelledby="{name}-title" aria-describedby="{name}-description"',
        f'<title id="{name}-title">{escape(title)}</title>',
        f'<desc id="{name}-description">{escape(description)}</desc>',
    )
    start, _, rest = own.removeprefix("<svg").partition(">")
    return f"{said[0]}{start}>{said[1]}{said[2]}{rest}"
