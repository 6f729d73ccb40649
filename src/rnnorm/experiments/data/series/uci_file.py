"""Comma-separated series of one length with the class behind them, as in the UCI archive."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rnnorm.experiments.data.at_least import check_at_least
from rnnorm.experiments.data.series.ts_file import numbers
from rnnorm.experiments.data.text_file import read_text
from rnnorm.experiments.data.whole_file import BrokenFileError


def read_uci(path: str | Path, features: int = 1) -> tuple[list[NDArray[np.float32]], list[str]]:
    """Read a file: a series a line, step after step, and its class last.

    Args:
        path: the file, plain or compressed.
        features: values of a time step, such as 2 for the pen's x and y.

    Returns:
        values ``(T, features)`` and class of each series.

    Raises:
        BrokenFileError: the file is broken.
        FileNotFoundError: there is no such file.
        ValueError: ``features < 1``.
    """
    check_at_least(1, features=features)
    x: list[NDArray[np.float32]] = []
    labels = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        text, _, label = line.rpartition(",")
        values = numbers(text, path, number)
        if len(values) % features or (x and len(values) != x[0].size):
            raise BrokenFileError(
                f"{path} has {len(values)} values before the class in line {number}: expected "
                + (f"{x[0].size}, as before" if x else f"a multiple of the {features} features")
            )
        if not label.strip():
            raise BrokenFileError(f"{path} has no class behind the last comma of line {number}")
        x.append(values.reshape(-1, features))
        labels.append(label.strip())
    if not x:
        raise BrokenFileError(f"{path} has no series")
    return x, labels
