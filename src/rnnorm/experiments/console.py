"""Text for the console: tables, errors in one line, durations, and refusals of arguments."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, get_args


def text_table(rows: Sequence[Sequence[str]], gap: str = "  ") -> list[str]:
    """Return a table's lines, each column as wide as its widest cell, ``gap`` between columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def shorten(error: Exception) -> str:
    """Return an error's message on one line of at most 300 characters."""
    return textwrap.shorten(str(error) or type(error).__name__, 300)


def counted(number: int, what: str) -> str:
    """Return a number and what it counts, such as ``1 step`` or ``2 steps``."""
    return f"{number} {what}{'s' * (number != 1)}"


def nearest(names: Sequence[str]) -> str:
    """Return the end of a message that names the words most like a misspelt one, if any are."""
    return f": the nearest {'is' if len(names) == 1 else 'are'} {', '.join(names)}" if names else ""


def duration(seconds: float) -> str:
    """Return a rounded duration in words, such as ``27 min``."""
    for unit, length, most in (("s", 1, 90), ("min", 60, 90), ("h", 3600, 48)):
        if seconds < most * length:
            return f"{max(seconds / length, 1):.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def check_at_least(least: int, **numbers: float | None) -> None:
    """Refuse a number below ``least``, naming it; None passes.

    Raises:
        ValueError: if a number is below ``least`` or nan.
    """
    for name, number in numbers.items():
        # negated, so that nan is refused too
        if number is not None and not number >= least:
            raise ValueError(f"{name} must be at least {least}, got {number}")


def check_choice(kind: Any, **values: object) -> None:
    """Refuse a value that the type ``kind``, a ``Literal``, does not list, naming it.

    Raises:
        ValueError: if a value is not listed.
    """
    known = get_args(kind)
    for name, value in values.items():
        if value not in known:
            *others, last = map(repr, known)
            one_of = "one of " if len(others) > 1 else ""
            raise ValueError(f"{name} must be {one_of}{', '.join(others)} or {last}, got {value!r}")
