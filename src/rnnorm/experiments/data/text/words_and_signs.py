"""The words of short texts as people write them."""

from __future__ import annotations

import html
import re

#: a word, apostrophes within it, or signs that stand together, such as a smiley
WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]+")


def words_and_signs(text: str) -> list[str]:
    """Words and signs of a text, in small letters, with ``&amp;`` and the like resolved."""
    return WORD.findall(html.unescape(text).lower())
