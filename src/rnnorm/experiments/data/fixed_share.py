"""Some of the training examples, where a recipe or a user asks for fewer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")


def fixed_share(items: Sequence[Item], size: int | None) -> list[Item]:
    """Keep as many examples, always the same random ones, in their order.

    The first ones of a file may be all of one class or speaker.

    Args:
        items: the examples.
        size: how many; None, or as many as there are, for all.
    """
    if size is None:
        return list(items)
    chosen = np.random.RandomState(0).permutation(len(items))[:size]
    return [items[i] for i in sorted(chosen)]
