"""Which metric says how good a model is."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import nn


class Score(NamedTuple):
    """A metric, and which of two values of it is the better one.

    Attributes:
        name: as it is logged, without ``val/`` or ``test/`` before it.
        mode: ``"max"`` or ``"min"``.
    """

    name: str
    mode: Literal["max", "min"]


def score_of(model: nn.Module) -> Score:
    """A task's score: its model's field ``score``, or the loss where there is none."""
    score = getattr(model, "score", None)
    return score if isinstance(score, Score) else Score("loss", "min")
