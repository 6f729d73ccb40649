"""A time as a person says it."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """About how long, such as ``27 min``."""
    for unit, length, most in (("s", 1, 90), ("min", 60, 90), ("h", 3600, 48)):
        if seconds < most * length:
            return f"{max(seconds / length, 1):.0f} {unit}"
    return f"{seconds / 86400:.0f} days"
