"""Strokes of KanjiVG's characters, simplified to a few points each, in one npz file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from rnnorm.experiments.data.strokes.strokes import DOWN, END, UP, Drawing, DrawnParts
from rnnorm.experiments.data.text_file import find_texts
from rnnorm.experiments.data.users_folder import users_folder
from rnnorm.experiments.data.whole_file import BrokenFileError, check_size, unpack

FILE = "kanjivg_rdp100.npz"


def load_kanjivg(data_dir: str | Path | None) -> DrawnParts:
    """Read ``kanjivg_rdp100.npz``, in the folder or in its folder ``handwriting``.

    Raises:
        BrokenFileError: the file is broken.
        FileNotFoundError: it is missing.
    """
    (path,) = find_texts(users_folder(data_dir, FILE), "handwriting", [FILE])
    return read_kanjivg(path)


def read_kanjivg(path: str | Path) -> DrawnParts:
    """Read characters of three parts; nothing in the file is unpickled.

    Args:
        path: the npz file, which may be compressed once more. Each of the parts ``train``,
            ``valid`` and ``test`` has three arrays: ``{part}_dxdy`` ``(P, 2)``, the offsets of all
            points; ``{part}_pen_up`` ``(P,)``, 1 where the pen is lifted after a point; and
            ``{part}_offsets`` ``(C + 1,)``, where each character begins.

    Raises:
        BrokenFileError: the file is broken: no such archive, an array is missing, pickled, cut
            short or of another shape, an offset is not finite, or a character has no point or does
            not end with the pen lifted.
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    names = [
        f"{part}_{name}"
        for part in ("train", "valid", "test")
        for name in ("dxdy", "pen_up", "offsets")
    ]
    arrays = _arrays(path, names)
    train, valid, test = (
        _characters(arrays[i], arrays[i + 1], arrays[i + 2], f"{path}, {names[i][:-5]}")
        for i in (0, 3, 6)
    )
    return DrawnParts(train, valid, test)


def _arrays(path: Path, names: Sequence[str]) -> list[NDArray[np.generic]]:
    data = unpack(path, "" if path.suffix == ".npz" else None)
    arrays, name = [], names[0]
    try:
        with NpzFile(io.BytesIO(data), allow_pickle=False) as archive:
            size = sum(archive.zip.getinfo(f"{name}.npy").file_size for name in names)
            check_size(size, f"{path}, unpacked,")
            for name in names:
                arrays.append(archive[name])
                if arrays[-1].dtype.kind not in "fiu":
                    raise ValueError(f"it must hold plain numbers, got {arrays[-1].dtype}")
    except BrokenFileError:
        raise
    # numpy raises many kinds
    except Exception as error:
        raise BrokenFileError(f"{path}, {name} cannot be read: {error}") from None
    return arrays


def _characters(
    offsets: NDArray[np.generic],
    pen_up: NDArray[np.generic],
    starts: NDArray[np.generic],
    where: str,
) -> list[Drawing]:
    if pen_up.ndim != 1 or offsets.shape != (len(pen_up), 2) or starts.ndim != 1 or len(starts) < 2:
        raise BrokenFileError(
            f"{where} must have dxdy (P, 2), pen_up (P,) and offsets (C + 1,), got "
            f"{offsets.shape}, {pen_up.shape} and {starts.shape}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        moves = offsets.astype(np.float32)
        begins = starts.astype(np.int64)
    if not np.isfinite(moves).all():
        at = int(np.argmin(np.isfinite(moves).all(1)))
        raise BrokenFileError(f"{where} has an offset that is not finite at point {at}")
    if not np.isin(pen_up, (0, 1)).all():
        raise BrokenFileError(f"{where} must have 0 or 1 in pen_up")
    if begins[0] != 0 or begins[-1] != len(pen_up) or (begins[1:] <= begins[:-1]).any():
        raise BrokenFileError(f"{where} must have offsets that go up from 0 to {len(pen_up)}")
    pen = np.where(pen_up == 1, UP, DOWN)
    if (unfinished := pen[begins[1:] - 1] != UP).any():
        raise BrokenFileError(
            f"{where} has a character that ends with the pen down: {unfinished.argmax()}"
        )
    pen[begins[1:] - 1] = END
    return [Drawing(moves[a:b], pen[a:b]) for a, b in pairwise(begins.tolist())]
