"""Times of training steps, out of the CSV files of ``rnnorm bench RECIPE ...``."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from rnnorm.experiments.data.text_file import as_text
from rnnorm.experiments.files import files_below, unpack
from rnnorm.experiments.trained.outcome import Outcome

_TORCH, _KEPT, _FUSED = "torch.nn", "torch.nn, memory kept", "plain, fused"
#: baselines of a step's time: the plain recipe on torch.nn's layers, the same with a malloc that
#: keeps freed memory, and the plain recipe on our fused kernel
RIVALS = (_TORCH, _KEPT, _FUSED)

_NEEDED = ("recipe", "scale", "seconds", "ratio", "ratio_to", "backend", "kernels", "malloc")
# most bytes of a file
_LIMIT = 1 << 20


class StepTime(NamedTuple):
    """Time of a recipe's training step.

    Attributes:
        seconds: seconds with the C library's default malloc, on the kernels that the layers
            choose, timed beside recipes alone; None if not timed so.
        ratios: ratio of the time to each rival's.
        base: recipe of the rivals.
    """

    seconds: float | None
    ratios: dict[str, float]
    base: str


#: times by recipe and scale
Steps = dict[tuple[str, str], StepTime]


def read_steps(folder: Path) -> Steps:
    """Read the times of each recipe and scale from all CSV files of a folder.

    Raises:
        ValueError: if a file is not from ``rnnorm bench RECIPE``, repeats another file's ratio, or
            has a ratio to another recipe than another file.
    """
    steps: Steps = {}
    for path in files_below(folder, ".csv"):
        rows = _rows(path)
        kernels = {row["recipe"]: row["kernels"] for row in rows}
        for row in rows:
            key = row["recipe"], row["scale"]
            base = row["ratio_to"].removesuffix(" on torch.nn")
            seconds, ratios, before = steps.get(key, StepTime(None, {}, base))
            try:
                kernel, own, ratio = kernels[row["ratio_to"]], float(row["seconds"]), row["ratio"]
                rival = _rival(kernel, row["malloc"])
                if base != before:
                    raise ValueError(f"another file has a ratio of {key[0]} to {before}")
                if rival in ratios:
                    raise ValueError(f"another file has the ratio of {key[0]} to {rival}")
                ratios = ratios | ({rival: float(ratio)} if rival else {})
            except (ValueError, KeyError) as error:
                raise ValueError(f"{path} is none of rnnorm bench RECIPE: {error}") from None
            if row["malloc"] == "default" and not row["backend"] and kernel != "torch.nn":
                seconds = own
            steps[key] = StepTime(seconds, ratios, base)
    return steps


def _rival(kernels: str, malloc: str) -> str | None:
    """Return the rival that ran on these kernels with this malloc, if it is one."""
    if kernels in ("aten", "torch.nn"):
        kept = all(f"MALLOC_{of}_THRESHOLD_=" in malloc for of in ("MMAP", "TRIM"))
        return _TORCH if malloc == "default" else _KEPT if kept else None
    return _FUSED if kernels == "cpu" and malloc == "default" else None


def step_of(outcome: Outcome, steps: Steps) -> StepTime | None:
    """Return the step times of an outcome's recipe, or None if the recipe was changed."""
    return None if outcome.changes else steps.get((outcome.recipe, outcome.scale))


def _rows(path: Path) -> list[dict[str, str]]:
    rows = list(csv.DictReader(as_text(unpack(path, "", _LIMIT), path).splitlines()))
    has = rows[0] if rows else {}
    if lacking := [name for name in _NEEDED if name not in has]:
        raise ValueError(f"{path} is none of rnnorm bench RECIPE: it lacks {', '.join(lacking)}")
    for line, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise ValueError(f"{path}: line {line} has more or fewer values than the first names")
    return rows
