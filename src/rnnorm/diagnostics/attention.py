"""A plot of attention: a document's words, coloured by the attention that they get."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FONT = "DejaVu Sans Mono"
_COLOUR = "#c8442c"
# width of a character and height of a line, in units of the font size
_WIDTH, _HEIGHT = 0.602, 1.5
_LARGEST = 10.0


def plot_attention(axes: Axes, words: Sequence[str], weights: Tensor) -> None:
    """Draw a document with its attention, the largest weight in full colour.

    The text is as large as the axes allow. Characters that matplotlib's own font lacks, such as
    Chinese ones, come from an installed font that has them; without one, such a word is drawn as
    ``#n``, the n-th distinct word of the document from 1 on.

    Args:
        axes: axes to draw on; set its size before, as the font size depends on it.
        words: the N words of the document.
        weights: attention of the words ``(N,)``, 0 or more.

    Raises:
        ValueError: if there are no words, or not as many weights as words.
    """
    from matplotlib.patches import Rectangle

    if not words or weights.shape != (len(words),):
        raise ValueError(
            f"weights must be ({len(words)},), one for each of at least one word, "
            f"got {tuple(weights.shape)}"
        )
    texts, fonts = _drawable(words)
    widths = [sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in text) for text in texts]
    box = axes.get_window_extent().transformed(axes.figure.dpi_scale_trans.inverted())
    size = _LARGEST
    while True:
        columns = max(max(widths), int(72 * box.width / (_WIDTH * size)))
        positions = _lines(widths, columns)
        lines = max(72 * box.height / (_HEIGHT * size), 1.0)
        if positions[-1][0] < lines or size < 1:
            break
        size *= 0.95
    weights = weights.detach()
    top = float(weights.max()) or 1.0
    for word, (line, column), width, weight in zip(
        texts, positions, widths, weights.tolist(), strict=True
    ):
        axes.add_patch(
            Rectangle((column, line), width, 0.9, color=_COLOUR, alpha=weight / top, linewidth=0)
        )
        axes.text(
            column + width / 2,
            line + 0.45,
            word,
            family=fonts,
            fontsize=size,
            ha="center",
            va="center",
            parse_math=False,
        )
    axes.set(xlim=(0, columns), ylim=(lines, 0))
    axes.set_axis_off()


def _lines(widths: Sequence[int], columns: int) -> list[tuple[int, int]]:
    """Return the line and column of each word, with a space between two words."""
    positions = []
    line = column = 0
    for width in widths:
        if column and column + width > columns:
            line, column = line + 1, 0
        positions.append((line, column))
        column += width + 1
    return positions


def _drawable(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words, with ``#n`` for those that no font can draw, and the fonts."""
    from matplotlib.font_manager import findfont, fontManager
    from matplotlib.ft2font import FT2Font

    def lacking(path: str, characters: set[str]) -> set[str]:
        font = FT2Font(path)
        return {c for c in characters if not font.get_char_index(ord(c))}

    fonts, missing = [_FONT], lacking(findfont(_FONT), set("".join(words)))
    if missing:
        # take the font that lacks fewest characters; a system font may be unreadable
        left = {_FONT: missing}
        for entry in fontManager.ttflist:
            if not entry.name.startswith("Last Resort"):
                try:
                    left[entry.name] = lacking(entry.fname, missing)
                except (OSError, RuntimeError):
                    continue
        best = min(left, key=lambda name: len(left[name]))
        fonts, missing = ([_FONT, best] if best != _FONT else fonts), left[best]
    numbers = {word: i for i, word in enumerate(dict.fromkeys(words), 1)}
    return [f"#{numbers[w]}" if missing.intersection(w) else w for w in words], fonts
