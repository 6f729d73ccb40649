"""Labelled time series, and the data sets that they come in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rnnorm.experiments.data.series.ts_file import read_ts
from rnnorm.experiments.data.series.uci_file import read_uci
from rnnorm.experiments.data.text_file import find_text
from rnnorm.experiments.data.users_folder import users_folder
from rnnorm.experiments.data.whole_file import BrokenFileError

# where a published archive, or a folder of several sets, has them
_ENDINGS = {"ts": ("_TRAIN.ts", "_TEST.ts"), "uci": (".tra", ".tes")}


class Series(NamedTuple):
    """Time series, and a class for each.

    Attributes:
        x: the values ``(T_i, F)`` of each series, float32, or its symbols ``(T_i,)``, int64.
        y: its class ``(N,)``, int64.
    """

    x: list[Tensor]
    y: Tensor

    def rows(self, chosen: Sequence[int]) -> Series:
        """Some of the series."""
        return Series([self.x[i] for i in chosen], self.y[torch.as_tensor(chosen)])


class Splits(NamedTuple):
    """Three disjoint parts of a data set, the names of its classes, and how it was scaled."""

    train: Series
    val: Series
    test: Series
    classes: tuple[str, ...]
    mean: Tensor
    std: Tensor


def load_series(
    name: str, data_dir: str | Path | None, layout: str = "ts", features: int = 1, val: float = 0.2
) -> Splits:
    """Read a data set that comes as a training and a test file.

    Args:
        name: of the set: its files are ``{name}_TRAIN.ts`` and ``{name}_TEST.ts`` (``"ts"``), or
            ``{name}.tra`` and ``{name}.tes`` (``"uci"``), plain or compressed.
        data_dir: their folder, or one that has them in ``{name}`` or ``timeseries/{name}``.
        layout: ``"ts"`` (:func:`rnnorm.experiments.data.series.ts_file.read_ts`) or ``"uci"``
            (:func:`rnnorm.experiments.data.series.uci_file.read_uci`).
        features: of ``"uci"``: values of a time step.
        val: share of the training series that validate, a fixed random choice of each class.

    Returns:
        The parts; values are scaled so that over the training part each feature has mean 0 and
        variance 1. One that is constant there is left at its own scale.

    Raises:
        BrokenFileError: a file is broken, or the two do not belong together.
        FileNotFoundError: ``data_dir`` is not given, or lacks a file.
        ValueError: an argument is out of its range, or no class has two series.
    """
    if layout not in _ENDINGS:
        raise ValueError(f"layout must be 'ts' or 'uci', got {layout!r}")
    if not 0 < val < 1:
        raise ValueError(f"val must be between 0 and 1, got {val}")
    first, last = _files(name, data_dir, layout)
    if layout == "ts":
        train, test = read_ts(first), read_ts(last)
    else:
        train, test = read_uci(first, features), read_uci(last, features)
    if train[0][0].shape[1] != test[0][0].shape[1]:
        raise BrokenFileError(
            f"{last} has {test[0][0].shape[1]} features, {first} has {train[0][0].shape[1]}"
        )
    classes = sorted(set(train[1]), key=lambda c: (len(c), c))
    if unknown := sorted(set(test[1]) - set(classes)):
        raise BrokenFileError(f"{last} has the class {unknown[0]!r}, which {first} has not")
    whole = _labelled(train, classes)
    kept, left = _split(whole.y, val)
    if not left:
        counts = ", ".join(f"{labels} of {c}" for c, labels in Counter(train[1]).items())
        raise ValueError(
            f"{first} must have two series of a class, to train and validate with: it has {counts}"
        )
    frames = torch.cat([whole.x[i] for i in kept])
    constant = frames.amin(0) == frames.amax(0)
    mean, std = frames.mean(0), frames.double().std(0, correction=0).float()
    std = std.masked_fill(constant, 1.0)
    train_part, val_part, test_part = (
        Series([(x - mean) / std for x in part.x], part.y)
        for part in (whole.rows(kept), whole.rows(left), _labelled(test, classes))
    )
    return Splits(train_part, val_part, test_part, tuple(classes), mean, std)


def _files(name: str, data_dir: str | Path | None, layout: str) -> list[Path]:
    names = [name + ending for ending in _ENDINGS[layout]]
    folder = users_folder(data_dir, " and ".join(names))
    places = (folder, folder / name, folder / "timeseries" / name)
    for place in places:
        # published files of the UCI archive have small letters
        for spelt in (names, [n.lower() for n in names]):
            found = [path for n in spelt if (path := find_text(place, n))]
            if len(found) == len(names):
                return found
    raise FileNotFoundError(f"{folder} lacks {' and '.join(names)}, also in {places[1]}")


def _labelled(read: tuple[list[np.ndarray], list[str]], classes: list[str]) -> Series:
    x, labels = read
    return Series(
        [torch.from_numpy(v) for v in x], torch.tensor([classes.index(c) for c in labels])
    )


def _split(y: Tensor, val: float) -> tuple[list[int], list[int]]:
    """Rows to train and to validate on: a fixed share of each class.

    Of a class of several rows at least one is on either side; one alone is to train on.
    """
    random = np.random.RandomState(0)
    left: set[int] = set()
    for label in range(int(y.max()) + 1):
        rows = np.flatnonzero(y.numpy() == label)
        if len(rows) > 1:
            held = min(max(1, round(val * len(rows))), len(rows) - 1)
            left |= {int(i) for i in random.permutation(rows)[:held]}
    return [i for i in range(len(y)) if i not in left], sorted(left)
