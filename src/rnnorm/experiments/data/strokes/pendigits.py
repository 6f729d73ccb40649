"""Digits of the set PenDigits as drawings with a class."""

from __future__ import annotations

from pathlib import Path

from rnnorm.experiments.data.held_out import fixed_tenth
from rnnorm.experiments.data.series.uci_file import read_uci
from rnnorm.experiments.data.strokes.strokes import Drawing, DrawnParts, drawing
from rnnorm.experiments.data.text_file import find_texts
from rnnorm.experiments.data.users_folder import users_folder


def load_pendigits(data_dir: str | Path | None) -> DrawnParts:
    """Read ``pendigits.tra`` and ``.tes``: 8 points of a digit, as one stroke.

    A fixed random tenth of the training digits validates. Where the pen was lifted the files do
    not say.

    Args:
        data_dir: the folder, or one that has them in ``timeseries/PenDigits``.

    Raises:
        BrokenFileError: a file is broken.
        ValueError: there is but one digit to train and to validate.
        FileNotFoundError: one is missing.
    """
    names = ["pendigits.tra", "pendigits.tes"]
    folder = users_folder(data_dir, " and ".join(names))
    train, test = map(_drawings, find_texts(folder, "timeseries/PenDigits", names))
    if len(train) < 2:
        raise ValueError(
            f"{folder} must have a digit to train and one to validate, got {len(train)}"
        )
    return DrawnParts(*fixed_tenth(train), test)


def _drawings(path: Path) -> list[Drawing]:
    # their y goes upwards
    x, labels = read_uci(path, 2)
    return [drawing([p * [1.0, -1.0]], label) for p, label in zip(x, labels, strict=True)]
