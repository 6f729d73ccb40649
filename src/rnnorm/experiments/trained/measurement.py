"""Test measurements, and the file in a run folder that keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rnnorm.experiments.files import file_exists, unpack
from rnnorm.experiments.training.score import SAMPLING_ERROR, Metric
from rnnorm.experiments.writing import write_whole

Statistics = Literal["population", "batch"]
FILE = "tests.json"
# largest size of the file in bytes
_LIMIT = 1 << 24


@dataclass(frozen=True)
class Measurement:
    """The test metrics of a checkpoint.

    Attributes:
        checkpoint: name of the checkpoint's file.
        epoch: the epoch of the checkpoint, counted from 1.
        statistics: which ones normalised, ``"population"`` or ``"batch"``; None without any.
        length: steps of each test window, or None for the recipe's own test set.
        estimated: whether the population statistics were estimated again before the test.
        overrides: options of LightningCLI.
        metrics: by name, such as ``test/accuracy``.
        step: the training step of the checkpoint; None if the file does not say.
    """

    checkpoint: str
    epoch: int
    statistics: Statistics | None
    length: int | None
    estimated: bool
    overrides: tuple[str, ...]
    metrics: dict[str, float]
    step: int | None = None

    def __str__(self) -> str:
        """Return one line for each metric."""
        how = "".join(
            [
                f"  {self.statistics} statistics" if self.statistics else "",
                f"  windows of {self.length}" if self.length else "",
            ]
        )
        metrics, lines = dict(self.metrics), []
        error = metrics.pop(SAMPLING_ERROR, None)
        for name, value in metrics.items():
            off = None if name == "test/loss" else error
            lines.append(Metric(name.removeprefix("test/")).format("test", value, off) + how)
        return "\n".join(lines)


def read_measurements(folder: str | Path) -> list[Measurement]:
    """Read the measurements of a run, oldest first.

    Raises:
        ValueError: if the file is broken.
    """
    path = Path(folder) / FILE
    if not file_exists(path):
        return []
    data = unpack(path, "", _LIMIT)
    try:
        found = [_measurement(row) for row in json.loads(data)]
        # a list in place of a number is not hashable
        hash(tuple(map(_what, found)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} holds no measurements: {error}") from None
    return found


def _measurement(row: dict[str, Any]) -> Measurement:
    """Build a measurement from its JSON row, without checks of the row."""
    metrics = {name: float(value) for name, value in row["metrics"].items()}
    return Measurement(**row | {"overrides": tuple(row["overrides"]), "metrics": metrics})


def keep_measurements(folder: Path, new: Iterable[Measurement]) -> None:
    """Add measurements to a run's file; each replaces an older one of the same settings.

    Raises:
        ValueError: if the file is broken.
        OSError: if the file cannot be read or written; the old file stays.
    """
    path = folder / FILE
    try:
        kept = {_what(m): m for m in read_measurements(folder)}
        for measurement in new:
            kept.pop(_what(measurement), None)
            kept[_what(measurement)] = measurement
        text = json.dumps([asdict(m) for m in kept.values()], indent=2)
        write_whole(path, f"{text}\n".encode())
    except OSError as error:
        message = f"could not keep the measurements in {path} ({error.strerror or error})"
        raise OSError(error.errno, message, str(path)) from error


def _what(measurement: Measurement) -> tuple[Any, ...]:
    """Return the fields of a measurement other than its metrics, as a key."""
    return tuple(value for key, value in vars(measurement).items() if key != "metrics")
