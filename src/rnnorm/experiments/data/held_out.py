"""Examples held out, always the same, where a data set has no parts for that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")


def fixed_tenth(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Mix examples, always alike, and hold a tenth of them out, at least one.

    Returns:
        What is left, and the tenth.
    """
    mixed = _mixed(items)
    tenth = max(1, len(items) // 10)
    return mixed[tenth:], mixed[:tenth]


def two_held_out(
    items: Sequence[Item], share: int = 10
) -> tuple[list[Item], list[Item], list[Item]]:
    """Mix examples, always alike, and hold one of ``share`` parts out, twice, at least one each.

    Returns:
        What is left, a part that validates, and one that tests.
    """
    mixed = _mixed(items)
    count = max(1, len(items) // share)
    return mixed[2 * count :], mixed[:count], mixed[count : 2 * count]


def _mixed(items: Sequence[Item]) -> list[Item]:
    return [items[i] for i in np.random.RandomState(0).permutation(len(items))]
