"""Digits of the set PenDigits as drawings with a class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rnnorm.experiments.data.series.uci_file import read_uci
from rnnorm.experiments.data.strokes.strokes import Drawing, DrawnParts, drawing
from rnnorm.experiments.data.text_file import find_texts


def load_pendigits(data_dir: str | Path | None) -> DrawnParts:
    """Read ``pendigits.tra`` and ``.tes``: 8 points of a digit, as one stroke.

    A fixed random tenth of the training digits validates. Where the pen was lifted the files do
    not say.

    Args:
        data_dir: the folder, or one that has them in ``timeseries/PenDigits``.

    Raises:
        BrokenFileError: a file is broken.
        FileNotFoundError: one is missing.
    """
    if data_dir is None:
        raise FileNotFoundError("name the folder that holds pendigits.tra with --data-dir")
    names = ["pendigits.tra", "pendigits.tes"]
    train, test = (
        _drawings(path)
        for path in find_texts(Path(data_dir).expanduser(), "timeseries/PenDigits", names)
    )
    mixed = [train[i] for i in np.random.RandomState(0).permutation(len(train))]
    tenth = max(1, len(mixed) // 10)
    return DrawnParts(mixed[tenth:], mixed[:tenth], test)


def _drawings(path: Path) -> list[Drawing]:
    # their y goes upwards
    x, labels = read_uci(path, 2)
    return [drawing([p * [1.0, -1.0]], label) for p, label in zip(x, labels, strict=True)]
