"""Numbers that may not be too small."""

from __future__ import annotations


def check_at_least(least: int, **numbers: float | None) -> None:
    """Refuse a number below ``least``, by its name; None is none.

    Raises:
        ValueError: there is one.
    """
    for name, number in numbers.items():
        # nan is not above it either
        if number is not None and not number >= least:
            raise ValueError(f"{name} must be at least {least}, got {number}")
