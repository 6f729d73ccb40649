"""What an error says, in one line."""

from __future__ import annotations

import textwrap


def one_line(error: Exception) -> str:
    """What an error says, without its line breaks and no longer than a message should be."""
    return textwrap.shorten(str(error) or type(error).__name__, 300)
