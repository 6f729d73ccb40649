"""Logger: one line for every number, in one CSV file that only ever grows."""

from __future__ import annotations

import csv
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger

from rnnorm.experiments.training.checkpoints import write_whole
from rnnorm.experiments.training.clock import Clock

COLUMNS = ("step", "epoch", "seconds", "name", "value")


class MetricsFile(Logger):
    """Appends ``step, epoch, seconds, name, value`` to a CSV file.

    ``seconds`` is the time spent in training steps (see ``Clock``).
    Lines reach the disk at the end of each call, so that a kill loses none.

    Args:
        path: the file.
        clock: where the seconds come from.
        keep_until: drop lines of later steps first, those that a resumed training writes again.
    """

    def __init__(self, path: Path, clock: Clock, keep_until: int | None = None) -> None:
        super().__init__()
        self.path = path
        self._clock = clock
        lines = [] if keep_until is None else _rows_until(path, keep_until)
        text = "".join(",".join(map(str, line)) + "\n" for line in (COLUMNS, *lines))
        write_whole(path, text.encode())

    @property
    def name(self) -> str:
        """Name of the logger."""
        return "metrics"

    @property
    def version(self) -> int:
        """There is one version."""
        return 0

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append a line for each number."""
        values = dict(metrics)
        epoch = int(values.pop("epoch", 0))
        seconds = f"{self._clock.seconds:.3f}"
        with self.path.open("a", newline="", encoding="utf-8") as file:
            rows = ((step, epoch, seconds, name, f"{v:.9g}") for name, v in values.items())
            csv.writer(file, lineterminator="\n").writerows(rows)

    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """Hyper-parameters stand in the run folder's ``config.yaml``."""


def read_metrics(path: str | Path) -> dict[str, list[tuple[int, float, float]]]:
    """Read such a file: for each name its ``(step, seconds, value)`` in order."""
    curves: dict[str, list[tuple[int, float, float]]] = {}
    for row in _rows(Path(path)):
        curves.setdefault(row[3], []).append((int(row[0]), float(row[2]), float(row[4])))
    return curves


def _rows(path: Path) -> list[list[str]]:
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    # a last line without its end was cut off when the disk was full or the process killed
    whole = text[: text.rfind("\n") + 1].splitlines()[1:]
    return [row for row in csv.reader(whole) if len(row) == len(COLUMNS)]


def _rows_until(path: Path, step: int) -> list[list[str]]:
    return [row for row in _rows(path) if int(row[0]) < step]
