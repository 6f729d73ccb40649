"""Labelled time series: readers of their files, the data sets, and minibatches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rnnorm.experiments.console import check_at_least, check_choice
from rnnorm.experiments.data.batches import Minibatches
from rnnorm.experiments.data.text_file import find_text, numbered_lines, read_text
from rnnorm.experiments.files import BrokenFileError, users_folder

#: layout of the two files of a data set
Layout = Literal["ts", "uci"]
# endings of the training and the test file
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
        """Return some of the series."""
        return Series([self.x[i] for i in chosen], self.y[torch.as_tensor(chosen)])


class Splits(NamedTuple):
    """Three disjoint parts of a data set, its classes, and its mean and deviation in float64."""

    train: Series
    val: Series
    test: Series
    classes: tuple[str, ...]
    mean: Tensor
    std: Tensor


def load_series(
    name: str,
    data_dir: str | Path | None,
    layout: Layout = "ts",
    features: int = 1,
    val: float = 0.2,
) -> Splits:
    """Read a data set that consists of a training and a test file.

    Args:
        name: name of the set: its files are ``{name}_TRAIN.ts`` and ``{name}_TEST.ts`` (``"ts"``),
            or ``{name}.tra`` and ``{name}.tes`` (``"uci"``), plain or compressed.
        data_dir: folder of the files, or one with them in ``{name}`` or ``timeseries/{name}``.
        layout: ``"ts"`` (:func:`rnnorm.experiments.data.series.read_ts`) or ``"uci"``
            (:func:`rnnorm.experiments.data.series.read_uci`).
        features: values of a time step, for ``"uci"``.
        val: share of the training series for validation, a fixed random choice of each class.

    Returns:
        The parts, scaled so that over the training part each feature has mean 0 and variance 1. A
        feature that is constant there keeps its scale.

    Raises:
        BrokenFileError: if a file is broken, or the two do not belong together.
        FileNotFoundError: if ``data_dir`` is not given, or lacks a file.
        ValueError: if an argument is out of its range, or no class has two series.
    """
    check_choice(Layout, layout=layout)
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
        raise BrokenFileError(f"{last} has the class {unknown[0]!r}, which {first} does not have")
    whole = _labelled(train, classes)
    kept, left = _split(whole.y, val)
    if not left:
        counts = ", ".join(f"{labels} of {c}" for c, labels in Counter(train[1]).items())
        raise ValueError(
            f"{first} must have two series of a class, to train and validate with: it has {counts}"
        )
    frames = torch.cat([whole.x[i] for i in kept])
    constant = frames.amin(0) == frames.amax(0)
    mean, std = frames.mean(0), frames.std(0, correction=0).masked_fill(constant, 1.0)
    train_part, val_part, test_part = (
        # scaled before they are rounded: of time stamps float32 would leave nothing
        Series([((x - mean) / std).float() for x in part.x], part.y)
        for part in (whole.rows(kept), whole.rows(left), _labelled(test, classes))
    )
    return Splits(train_part, val_part, test_part, tuple(classes), mean, std)


def _files(name: str, data_dir: str | Path | None, layout: str) -> list[Path]:
    names = [name + ending for ending in _ENDINGS[layout]]
    folder = users_folder(data_dir, " and ".join(names))
    folders = (folder, folder / name, folder / "timeseries" / name)
    for each in folders:
        # the UCI archive publishes its files in lower case
        for spelt in (names, [n.lower() for n in names]):
            found = [path for n in spelt if (path := find_text(each, n))]
            if len(found) == len(names):
                return found
    raise FileNotFoundError(f"{folder} lacks {' and '.join(names)}, also in {folders[1]}")


def _labelled(read: tuple[list[np.ndarray], list[str]], classes: list[str]) -> Series:
    x, labels = read
    return Series(
        [torch.from_numpy(v) for v in x], torch.tensor([classes.index(c) for c in labels])
    )


def _split(y: Tensor, val: float) -> tuple[list[int], list[int]]:
    """Choose the rows to train and to validate on: a fixed share of each class.

    A class of several rows has at least one row on either side; a single row is for training.
    """
    random = np.random.RandomState(0)
    left: set[int] = set()
    for label in range(int(y.max()) + 1):
        rows = np.flatnonzero(y.numpy() == label)
        if len(rows) > 1:
            held = min(max(1, round(val * len(rows))), len(rows) - 1)
            left |= {int(i) for i in random.permutation(rows)[:held]}
    return [i for i in range(len(y)) if i not in left], sorted(left)


def read_ts(path: str | Path) -> tuple[list[NDArray[np.float64]], list[str]]:
    """Read a ``.ts`` file: a header of ``@`` lines, then a series on each line.

    Colons separate the dimensions of a series, commas its values, and the class comes last. Files
    with time stamps, missing values or no class are refused.

    Args:
        path: the file, plain or compressed.

    Returns:
        The values ``(T, F)`` and the class of each series.

    Raises:
        BrokenFileError: if the file is broken, or has time stamps, missing values or no class.
        FileNotFoundError: if there is no such file.
    """
    lines = read_text(path).splitlines()
    start = next((n for n, line in enumerate(lines) if line.strip().lower() == "@data"), None)
    if start is None:
        raise BrokenFileError(f"{path} is no .ts file: it has no line '@data'")
    header = {}
    for line in lines[:start]:
        name, *value = line.lower().split(maxsplit=1) or [""]
        header[name] = "".join(value).strip()
    if header.get("@timestamps", "false") != "false":
        raise BrokenFileError(f"{path} has time stamps, which are not read")
    if not header.get("@classlabel", "").startswith("true"):
        raise BrokenFileError(f"{path} has no classes: its header lacks '@classLabel true ...'")
    classes = set(header["@classlabel"].split()[1:])
    x: list[NDArray[np.float64]] = []
    labels = []
    for number, line in enumerate(lines[start + 1 :], start + 2):
        if not line.strip():
            continue
        *dimensions, label = (part.strip() for part in line.split(":"))
        if label.lower() not in classes:
            raise BrokenFileError(
                f"{path} has the class {label[:40]!r} in line {number}, not in its header"
            )
        values = [numbers(dimension, path, number) for dimension in dimensions]
        lengths, dims = [len(v) for v in values], x[0].shape[1] if x else len(values)
        if not values or len(set(lengths)) != 1 or len(values) != dims:
            raise BrokenFileError(
                f"{path} has dimensions of {lengths} values in line {number}: expected "
                f"{dims or 'some'} dimensions of the same length"
            )
        x.append(np.stack(values, 1))
        labels.append(label)
    if not x:
        raise BrokenFileError(f"{path} has no series behind '@data' in line {start + 1}")
    return x, labels


def numbers(text: str, path: str | Path, line: int) -> NDArray[np.float64]:
    """Parse numbers separated by commas, which are finite in float32.

    Raises:
        BrokenFileError: if a value is not a finite number.
    """
    try:
        values = np.array([float(value) for value in text.split(",")])
    except ValueError as error:
        raise BrokenFileError(f"{path} has no number in line {line}: {error}") from None
    # their squares are finite too
    if not (np.abs(values) <= np.finfo(np.float32).max).all():
        raise BrokenFileError(f"{path} has a value that is not finite in line {line}")
    return values


def read_uci(path: str | Path, features: int = 1) -> tuple[list[NDArray[np.float64]], list[str]]:
    """Read a UCI file: a series on each line, step after step, and its class last.

    Args:
        path: the file, plain or compressed.
        features: values of a time step, such as 2 for the pen's x and y.

    Returns:
        The values ``(T, features)`` and the class of each series.

    Raises:
        BrokenFileError: if the file is broken.
        FileNotFoundError: if there is no such file.
        ValueError: if ``features < 1``.
    """
    check_at_least(1, features=features)
    x: list[NDArray[np.float64]] = []
    labels = []
    for number, line in numbered_lines(read_text(path)):
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


class SeriesBatch(NamedTuple):
    """A right-padded minibatch.

    Attributes:
        x: values ``(T, B, F)``, or symbols ``(T, B)``.
        lengths: steps of each series ``(B,)``.
        y: class of each series ``(B,)``.
    """

    x: Tensor
    lengths: Tensor
    y: Tensor


class SeriesBatches(Minibatches[SeriesBatch]):
    """Minibatches of random series, or, without a seed, in the order of the data.

    Args:
        series: the series.
        batch_size: rows of a minibatch. One row that is left over joins the minibatch before it:
            a single row has no batch statistics.
        seed: seed of the order, or None for the order of the data.
    """

    def __init__(self, series: Series, batch_size: int, seed: int | None = None) -> None:
        super().__init__(len(series.y), batch_size, seed)
        self.series = series

    def batch(self, number: int, drawn: list[NDArray[np.int64]]) -> SeriesBatch:
        """Return a minibatch of the drawn order."""
        x, y = self.series.rows(drawn[number].tolist())
        return SeriesBatch(pad_sequence(x), torch.tensor([len(each) for each in x]), y)
