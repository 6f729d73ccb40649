"""What training steps cost, out of the CSV files of ``rnnorm bench RECIPE ...``."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from rnnorm.experiments.data.text_file import as_text
from rnnorm.experiments.files import files_below, unpack
from rnnorm.experiments.trained.outcome import Outcome

_TORCH, _KEPT, _FUSED = "torch.nn", "torch.nn, memory kept", "plain, fused"
#: what the time of a step is a ratio to: the plain recipe on torch.nn's layers, the same by a
#: malloc that keeps freed memory, and the plain recipe on our fused kernel
RIVALS = (_TORCH, _KEPT, _FUSED)

_NEEDED = ("recipe", "scale", "seconds", "ratio", "ratio_to", "backend", "kernels", "malloc")
# bytes of a file
_LIMIT = 1 << 20


class StepTime(NamedTuple):
    """What a training step of a recipe costs.

    Attributes:
        seconds: by the C library's own malloc, on the kernels that the layers choose, beside
            recipes alone; None where that was not timed.
        ratios: by rival.
    """

    seconds: float | None
    ratios: dict[str, float]


#: by recipe and scale
Steps = dict[tuple[str, str], StepTime]


def read_steps(folder: Path) -> Steps:
    """The times of each recipe and scale, out of all the CSV files of a folder.

    Raises:
        ValueError: if a file is none of ``rnnorm bench RECIPE``, or has a ratio that another has.
    """
    steps: Steps = {}
    for path in files_below(folder, ".csv"):
        rows = _rows(path)
        kernels = {row["recipe"]: row["kernels"] for row in rows}
        for row in rows:
            key = row["recipe"], row["scale"]
            seconds, ratios = steps.get(key, StepTime(None, {}))
            try:
                base, own, ratio = kernels[row["ratio_to"]], float(row["seconds"]), row["ratio"]
                rival = _rival(base, row["malloc"])
                if rival in ratios:
                    raise ValueError(f"another file has the ratio of {key[0]} to {rival}")
                ratios = ratios | ({rival: float(ratio)} if rival else {})
            except (ValueError, KeyError) as error:
                raise ValueError(f"{path} is none of rnnorm bench RECIPE: {error}") from None
            if row["malloc"] == "default" and not row["backend"] and base != "torch.nn":
                seconds = own
            steps[key] = StepTime(seconds, ratios)
    return steps


def _rival(kernels: str, malloc: str) -> str | None:
    """Which one ran on these kernels, if it is one of them."""
    if kernels in ("aten", "torch.nn"):
        kept = all(f"MALLOC_{of}_THRESHOLD_=" in malloc for of in ("MMAP", "TRIM"))
        return _TORCH if malloc == "default" else _KEPT if kept else None
    return _FUSED if kernels == "cpu" and malloc == "default" else None


def step_of(outcome: Outcome, steps: Steps) -> StepTime | None:
    """The times of what an outcome is of; a changed model may take another time."""
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
