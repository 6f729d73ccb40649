"""A tenth of the examples that validates where a data set has no part for that."""

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
    mixed = [items[i] for i in np.random.RandomState(0).permutation(len(items))]
    tenth = max(1, len(items) // 10)
    return mixed[tenth:], mixed[:tenth]
