"""The ``.ts`` files of the time series classification archives (sktime)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rnnorm.experiments.data.text_file import read_text
from rnnorm.experiments.data.whole_file import BrokenFileError


def read_ts(path: str | Path) -> tuple[list[NDArray[np.float32]], list[str]]:
    """Read a file: a header of ``@`` lines, then a series a line.

    The dimensions of a series are separated by colons, its values by commas, and the class stands
    last. Files with time stamps, missing values or no class are refused.

    Args:
        path: the file, plain or compressed.

    Returns:
        values ``(T, F)`` and class of each series.

    Raises:
        BrokenFileError: the file is broken, or of a kind that is not read.
        FileNotFoundError: there is no such file.
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
    x: list[NDArray[np.float32]] = []
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


def numbers(text: str, path: str | Path, line: int) -> NDArray[np.float32]:
    """Finite numbers separated by commas.

    Raises:
        BrokenFileError: one of them is none.
    """
    try:
        with np.errstate(over="ignore"):
            values = np.array([float(value) for value in text.split(",")]).astype(np.float32)
    except ValueError as error:
        raise BrokenFileError(f"{path} has no number in line {line}: {error}") from None
    if not np.isfinite(values).all():
        raise BrokenFileError(f"{path} has a value that is not finite in line {line}")
    return values
