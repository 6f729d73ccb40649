"""One figure of a report: an SVG within the page, or the reason why it is missing."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from rnnorm.experiments.pictures import COLOURS, Look, make_room, styled_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Picture(NamedTuple):
    """A figure, or the reason why it is missing.

    Attributes:
        title: title of the figure.
        caption: how the figure was made, or why it was left out.
        svg: the figure, or None if it was left out.
        description: the figure in words.
    """

    title: str
    caption: str
    svg: str | None = None
    description: str = ""


@contextmanager
def pictures_or_reason(title: str) -> Iterator[list[Picture]]:
    """Collect pictures; a ValueError becomes a picture that only states the reason."""
    pictures: list[Picture] = []
    try:
        yield pictures
    except ValueError as error:
        pictures.append(Picture(title, f"{error}"))


def cycle(looks: Iterable[Look]) -> dict[str, list[Any]]:
    """Convert looks to a property cycle of matplotlib."""
    colours, dashes = zip(*looks, strict=True)
    return {"color": list(colours), "linestyle": list(dashes)}


def shades(colour: str, count: int) -> dict[str, list[Any]]:
    """Make a property cycle of one colour from light to full."""
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
    """Draw a small picture, legible on a phone.

    Args:
        title: title of the picture.
        caption: how the picture was made.
        plot: draws the picture on axes.
        looks: styles of successive lines, as matplotlib's ``set_prop_cycle`` takes them.
        legend: whether to add a legend below.
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
    """Describe the axes of a figure and the lines drawn on them."""
    against = f"{axes.get_ylabel()} against {axes.get_xlabel()}".removesuffix(" against ")
    drawn = ", ".join(" ".join(label.split()) for label in labels)
    words = ": ".join(part for part in (against.strip(), drawn) if part)
    # undo the escaping of escape_dollars
    return words.replace(r"\$", "$")


# the models' colours in the dark style sheet
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
#: names in the style sheet by light colour
NAMES = {light: name for name, (light, _) in SHADES.items()}
_COLOUR = re.compile(rf"(?<=: )({'|'.join(NAMES)})\b")
_ID = re.compile(r'(\bid="|href="#|url\(#)')


def as_svg(figure: Figure) -> str:
    """Render a figure as SVG without a background, in the colours of the page's style sheet."""
    data = io.StringIO()
    # the metadata would bring a date and addresses of vocabularies into the page
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(data, format="svg", metadata=metadata, transparent=True)
    text = data.getvalue()
    return _COLOUR.sub(lambda found: f"var(--{NAMES[found[0]]})", text[text.index("<svg") :])


def in_page(svg: str, name: str, title: str, description: str) -> str:
    """Make ids unique and add title and description to an SVG, for a page with several figures.

    Args:
        svg: the figure from :func:`as_svg`.
        name: prefix of the figure's ids, unique in the page.
        title: title for screen readers.
        description: description for screen readers.
    """
    prefixed = _ID.sub(rf"\g<1>{name}-", svg)
    opening = (
        f'<svg role="img" aria-labelledby="{name}-title" aria-describedby="{name}-description"'
    )
    texts = (
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-description">{escape(description)}</desc>'
    )
    attributes, _, rest = prefixed.removeprefix("<svg").partition(">")
    return f"{opening}{attributes}>{texts}{rest}"
