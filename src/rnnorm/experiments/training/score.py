"""Name and format metrics and the spread of scores, and choose the metric that scores a model."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

# name of the standard error of a test's score
SAMPLING_ERROR = "test/sampling_error"


@dataclass(frozen=True)
class Metric:
    """A measured quantity of a model.

    Attributes:
        name: the logged name, without ``val/`` or ``test/`` before it.
    """

    name: str

    @property
    def in_validation(self) -> str:
        """Return the name under which validation logs the metric."""
        return f"val/{self.name}"

    def validated(self, logged: Mapping[str, Any]) -> float | None:
        """Return the validation value among the logged ones, or None if it was not logged."""
        value = logged.get(self.in_validation)
        return None if value is None else float(value)

    @property
    def label(self) -> str:
        """Return the metric's name with its unit, such as ``accuracy, %``."""
        return _label_and_factor(self.name)[0]

    def in_unit(self, value: float) -> float:
        """Return a value in the metric's unit: accuracies and errors in per cent."""
        return _label_and_factor(self.name)[1] * value

    def format(self, part: str, value: float, error: float | None = None) -> str:
        """Return a value with part, name and unit, such as ``validation accuracy 91.24 %``.

        Args:
            part: ``"training"``, ``"validation"`` or ``"test"``.
            value: the value as logged.
            error: the standard error of ``value`` as logged, or None.
        """
        name, factor = _label_and_factor(self.name)
        name, comma, unit = name.partition(", ")
        digits = 2 if unit == "%" or factor * value >= 10 else 4
        off = "" if error is None else f" ± {factor * error:.{digits}f}"
        return f"{part} {name} {factor * value:.{digits}f}{off}{comma and ' '}{unit}"


@dataclass(frozen=True)
class Score(Metric):
    """A metric, with the direction in which its values improve.

    Attributes:
        mode: ``"max"`` or ``"min"``.
    """

    mode: Literal["max", "min"]

    @property
    def sign(self) -> int:
        """Return 1 if higher values are better, -1 if lower ones are."""
        return 1 if self.mode == "max" else -1


# label of each metric, and the factor of its values
_LABELS = {
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


def _label_and_factor(name: str) -> tuple[str, float]:
    return _LABELS.get(name, (name.replace("_", " "), 1.0))


def score_of(model: nn.Module) -> Score:
    """Return the model's field ``score``, or the loss if the model has no score."""
    score = getattr(model, "score", None)
    return score if isinstance(score, Score) else Score("loss", "min")


def spread(values: Sequence[float], score: Score) -> str:
    """Format mean and standard deviation of the seeds' scores; an empty text without scores."""
    if not values:
        return ""
    digits = 1 if score.name == "perplexity" or score.label.endswith("%") else 3
    return with_deviation(values, digits)


def with_deviation(values: Sequence[float], digits: int) -> str:
    """Format a mean, with the standard deviation if there are several finite values."""
    mean = statistics.fmean(values)
    if len(values) < 2 or not math.isfinite(mean):
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {statistics.stdev(values):.{digits}f}"
