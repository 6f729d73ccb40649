"""What training steps cost, out of the CSV files of ``rnnorm bench RECIPE ...``."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from rnnorm.experiments.data.text_file import as_text, unpack
from rnnorm.experiments.measuring.outcome import Outcome

#: what the time of a step is a ratio to: the plain recipe on torch.nn's layers, the same by a
#: malloc that keeps freed memory, and the plain recipe on our fused kernel
RIVALS = ("torch.nn", "torch.nn, memory kept", "plain, fused")

_ON_TORCH = ("aten", "torch.nn")
_NEEDED = ("recipe", "scale", "seconds", "ratio", "ratio_to", "backend", "kernels", "malloc")
# bytes of a file
_LIMIT = 1 << 20


class StepTime(NamedTuple):
    """What a training step of a recipe costs.

    Attributes:
        seconds: by the C library's own malloc, on the kernels that the layers choose; None where
            that was not timed.
        ratios: by rival.
    """

    seconds: float | None
    ratios: dict[str, float]


#: by recipe and scale
Steps = dict[tuple[str, str], StepTime]


def read_steps(folder: Path) -> Steps:
    """The times of each recipe and scale, out of all the CSV files of a folder.

    Raises:
        ValueError: a file is none of ``rnnorm bench RECIPE``.
    """
    steps: Steps = {}
    for path in sorted(folder.rglob("*.csv")):
        rows = _rows(path)
        kernels = {row["recipe"]: row["kernels"] for row in rows}
        for row in rows:
            key, default = (row["recipe"], row["scale"]), row["malloc"] == "default"
            seconds, ratios = steps.get(key, StepTime(None, {}))
            if default and not row["backend"]:
                seconds = float(row["seconds"])
            if kernels[row["ratio_to"]] in _ON_TORCH:
                ratios = ratios | {RIVALS[not default]: float(row["ratio"])}
            elif default:
                ratios = ratios | {RIVALS[2]: float(row["ratio"])}
            steps[key] = StepTime(seconds, ratios)
    return steps


def step_of(outcome: Outcome, steps: Steps) -> StepTime | None:
    """The times of what an outcome is of; a changed model may take another time."""
    return None if outcome.changes else steps.get((outcome.recipe, outcome.scale))


def _rows(path: Path) -> list[dict[str, str]]:
    rows = list(csv.DictReader(as_text(unpack(path, "", _LIMIT), path).splitlines()))
    has = rows[0] if rows else {}
    if lacking := [name for name in _NEEDED if name not in has]:
        raise ValueError(f"{path} is none of rnnorm bench RECIPE: it lacks {', '.join(lacking)}")
    return rows
