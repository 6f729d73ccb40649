"""Drawings of a pen: offsets from point to point, and minibatches of drawings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rnnorm.experiments.data.batches import SimilarLengths, frame_mask

#: the pen after a point: it stays down, is lifted, or is lifted for the last time
DOWN, UP, END = 0, 1, 2


class Drawing(NamedTuple):
    """A character, or a line of writing.

    Attributes:
        offsets: each point relative to its predecessor, x to the right, y downwards ``(N, 2)``.
        pen: ``DOWN``, ``UP`` or ``END`` after each point ``(N,)``, ``END`` only after the last.
        label: name of the class, or an empty text.
    """

    offsets: NDArray[np.float32]
    pen: NDArray[np.int64]
    label: str = ""


class DrawnParts(NamedTuple):
    """Three disjoint parts of a set of drawings."""

    train: Sequence[Drawing]
    val: Sequence[Drawing]
    test: Sequence[Drawing]


def drawing(strokes: Sequence[NDArray[np.float64]], label: str = "") -> Drawing:
    """Make a drawing of strokes ``(N, 2)`` of one or more points; the first point is the origin."""
    points = np.concatenate(strokes)
    pen = np.full(len(points), DOWN)
    pen[np.cumsum([len(stroke) for stroke in strokes]) - 1] = UP
    pen[-1] = END
    offsets = np.diff(points, axis=0, prepend=points[:1]).astype(np.float32)
    return Drawing(offsets, pen, label)


class StrokeBatch(NamedTuple):
    """A right-padded minibatch of drawings.

    Attributes:
        x: inputs of the model ``(T, B, 3)``: offset of the previous point and whether the pen was
            lifted there; before the first point a zero offset and a lifted pen.
        offsets: the offset of each point ``(T, B, 2)``.
        pen: ``DOWN``, ``UP`` or ``END`` after each point ``(T, B)``.
        lengths: points of each drawing ``(B,)``.
        classes: class of each drawing ``(B,)``.
    """

    x: Tensor
    offsets: Tensor
    pen: Tensor
    lengths: Tensor
    classes: Tensor

    @property
    def inside(self) -> Tensor:
        """Return the mask ``(T, B)`` of the points that are not padding."""
        return frame_mask(self.lengths, len(self.x))


def inputs(offsets: Tensor, pen: Tensor) -> Tensor:
    """Return the model's inputs before each point and after the last one, ``(N + 1, 3)``."""
    points = torch.cat([offsets, (pen >= UP).to(offsets).unsqueeze(1)], 1)
    first = points.new_tensor([[0.0, 0.0, 1.0]])
    return torch.cat([first, points])


class StrokeBatches(SimilarLengths[StrokeBatch]):
    """Minibatches of drawings of similar length.

    Args:
        drawings: the drawings.
        classes: names of the classes, in order; empty for drawings without classes.
        scale: divisor of the offsets.
        batch_size: rows of a minibatch.
        seed: seed of the order, or None for the order of the lengths.
    """

    def __init__(
        self,
        drawings: Sequence[Drawing],
        classes: Sequence[str],
        scale: float,
        batch_size: int,
        seed: int | None = None,
    ) -> None:
        super().__init__([len(each.pen) for each in drawings], batch_size, seed)
        self.drawings, self.classes, self.scale = drawings, tuple(classes), scale

    def points(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the scaled offsets ``(N, 2)`` and the pen ``(N,)`` of a drawing."""
        each = self.drawings[index]
        return torch.from_numpy(each.offsets / np.float32(self.scale)), torch.from_numpy(each.pen)

    def batch(self, number: int, drawn: list[NDArray[np.intp]]) -> StrokeBatch:
        """Return a minibatch of the drawn order."""
        rows = drawn[number].tolist()
        points = [self.points(i) for i in rows]
        labels = [self.drawings[i].label for i in rows]
        return StrokeBatch(
            pad_sequence([inputs(*each)[:-1] for each in points]),
            pad_sequence([offsets for offsets, _ in points]),
            pad_sequence([pen for _, pen in points]),
            torch.from_numpy(self.lengths[rows]),
            torch.tensor([self.classes.index(label) if self.classes else 0 for label in labels]),
        )
