"""What a test has measured, and the file in a run folder that keeps it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rnnorm.experiments.files import file_exists, unpack, write_whole
from rnnorm.experiments.training.score import SAMPLING_ERROR, Metric

Statistics = Literal["population", "batch"]
FILE = "tests.json"
# bytes of that file
_LIMIT = 1 << 24


@dataclass(frozen=True)
class Measurement:
    """The test metrics of a checkpoint.

    Attributes:
        checkpoint: name of its file.
        epoch: the epoch it is from, counted from 1.
        statistics: which ones normalised, ``"population"`` or ``"batch"``; None without any.
        length: steps of each test window, or None for the recipe's own test set.
        estimated: whether the population statistics were taken anew before.
        overrides: options of LightningCLI.
        metrics: by name, such as ``test/accuracy``.
        step: the training step it is from; None in a file that does not say.
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
        """A line for each metric."""
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
            lines.append(Metric(name.removeprefix("test/")).said("test", value, off) + how)
        return "\n".join(lines)


def read_measurements(folder: str | Path) -> list[Measurement]:
    """All measurements of a run, oldest first.

    Raises:
        ValueError: the file is broken.
    """
    path = Path(folder) / FILE
    if not file_exists(path):
        return []
    data = unpack(path, "", _LIMIT)
    try:
        found = [_measurement(row) for row in json.loads(data)]
        # a list in place of a number
        hash(tuple(map(_what, found)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} holds no measurements: {error}") from None
    return found


def _measurement(row: dict[str, Any]) -> Measurement:
    """A measurement out of its JSON; raises what the types of a broken one raise."""
    metrics = {name: float(value) for name, value in row["metrics"].items()}
    return Measurement(**row | {"overrides": tuple(row["overrides"]), "metrics": metrics})


def keep_measurements(folder: Path, new: Iterable[Measurement]) -> None:
    """Add measurements to those of a run; one of the same thing replaces the one before.

    Raises:
        ValueError: the file is broken.
        OSError: the disk is full, or the folder cannot be read or written; the old file stays.
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
    return tuple(value for key, value in vars(measurement).items() if key != "metrics")
