"""Metrics as a reader sees them, and the one that says how good a model is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

# under which a test logs the standard error of its score
SAMPLING_ERROR = "test/sampling_error"


@dataclass(frozen=True)
class Metric:
    """What is measured of a model.

    Attributes:
        name: as it is logged, without ``val/`` or ``test/`` before it.
    """

    name: str

    @property
    def label(self) -> str:
        """What it is called, with its unit, such as ``accuracy, %``."""
        return _shown(self.name)[0]

    def shown(self, value: float) -> float:
        """A value in that unit: accuracies and errors in per cent."""
        return _shown(self.name)[1] * value

    def said(self, part: str, value: float, error: float | None = None) -> str:
        """A value with all that belongs to it, such as ``validation accuracy 91.24 %``.

        Args:
            part: ``"validation"`` or ``"test"``.
            value: as it is logged.
            error: its standard error, likewise.
        """
        name, factor = _shown(self.name)
        name, comma, unit = name.partition(", ")
        digits = 2 if unit == "%" or factor * value >= 10 else 4
        off = "" if error is None else f" ± {factor * error:.{digits}f}"
        return f"{part} {name} {factor * value:.{digits}f}{off}{comma and ' '}{unit}"


@dataclass(frozen=True)
class Score(Metric):
    """A metric, and which of two values of it is the better one.

    Attributes:
        mode: ``"max"`` or ``"min"``.
    """

    mode: Literal["max", "min"]


# how a metric is called, and what it is multiplied by
_SHOWN = {
    "accuracy": ("accuracy, %", 100.0),
    "frame_error": ("frame error, %", 100.0),
    "error": ("error, %", 100.0),
    "word_error": ("word error, %", 100.0),
    "phone_error": ("phone error, %", 100.0),
    "bits_per_character": ("bits per character", 1.0),
    "perplexity": ("perplexity", 1.0),
    "loss": ("loss, nats", 1.0),
    "bleu": ("BLEU", 1.0),
}


def _shown(name: str) -> tuple[str, float]:
    return _SHOWN.get(name, (name.replace("_", " "), 1.0))


def score_of(model: nn.Module) -> Score:
    """A task's score: its model's field ``score``, or the loss where there is none."""
    score = getattr(model, "score", None)
    return score if isinstance(score, Score) else Score("loss", "min")
