"""What is printed: tables, errors in one line, durations, and numbers that are too small."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]], gap: str = "  ") -> list[str]:
    """Lines whose columns are as wide as their widest cell, with ``gap`` between them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def shorten(error: Exception) -> str:
    """What an error says, without its line breaks and no longer than a message should be."""
    return textwrap.shorten(str(error) or type(error).__name__, 300)


def duration(seconds: float) -> str:
    """About how long, such as ``27 min``."""
    for unit, length, most in (("s", 1, 90), ("min", 60, 90), ("h", 3600, 48)):
        if seconds < most * length:
            return f"{max(seconds / length, 1):.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def check_at_least(least: int, **numbers: float | None) -> None:
    """Refuse a number below ``least``, by its name; None is none.

    Raises:
        ValueError: there is one.
    """
    for name, number in numbers.items():
        # nan is not above it either
        if number is not None and not number >= least:
            raise ValueError(f"{name} must be at least {least}, got {number}")
