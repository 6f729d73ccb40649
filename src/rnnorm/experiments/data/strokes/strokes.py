"""What a pen has drawn: offsets from point to point, and where it was lifted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: after a point the stroke goes on, or the pen is lifted, or it is lifted for the last time
DOWN, UP, END = 0, 1, 2


class Drawing(NamedTuple):
    """A character, or a line of writing.

    Attributes:
        offsets: of each point from the one before it, x to the right and y downwards ``(N, 2)``.
        pen: ``DOWN``, ``UP`` or ``END`` after each point ``(N,)``, ``END`` after the last alone.
        label: its class, or an empty text.
    """

    offsets: NDArray[np.float32]
    pen: NDArray[np.int64]
    label: str = ""


class DrawnParts(NamedTuple):
    """Disjoint parts of a set of drawings."""

    train: Sequence[Drawing]
    val: Sequence[Drawing]
    test: Sequence[Drawing]


def drawing(strokes: Sequence[NDArray[np.float64]], label: str = "") -> Drawing:
    """A drawing of strokes ``(N, 2)`` of one point or more each; its first point is the origin."""
    points = np.concatenate(strokes)
    pen = np.full(len(points), DOWN)
    pen[np.cumsum([len(stroke) for stroke in strokes]) - 1] = UP
    pen[-1] = END
    offsets = np.diff(points, axis=0, prepend=points[:1]).astype(np.float32)
    return Drawing(offsets, pen, label)
