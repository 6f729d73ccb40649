"""A figure as a part of a page: light or dark as the page is, with ids and a title of its own."""

from __future__ import annotations

import io
import re
from html import escape
from typing import TYPE_CHECKING

from rnnorm.experiments.comparing.picture import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
