"""Readers of three sets of drawings: IAM-OnDB, KanjiVG and PenDigits."""

from __future__ import annotations

import codecs
import io
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree
from xml.parsers import expat

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from rnnorm.experiments.data.batches import fixed_tenth, two_held_out
from rnnorm.experiments.data.series import read_uci
from rnnorm.experiments.data.strokes.strokes import DOWN, END, UP, Drawing, DrawnParts, drawing
from rnnorm.experiments.data.text_file import find_texts
from rnnorm.experiments.files import (
    BrokenFileError,
    check_size,
    files_below,
    inner_folder,
    unpack,
    users_folder,
)

# offsets are held in float32, in which larger ones lose their whole numbers
_FARTHEST = 1e9


def read_iam(path: str | Path) -> Drawing:
    """Read the strokes of a line of handwriting.

    Args:
        path: the xml file, in the encoding that it declares: a ``StrokeSet`` of ``Stroke`` of
            ``Point`` with ``x`` and ``y``.

    Raises:
        BrokenFileError: if the file is not complete xml, declares entities, has a point without
            finite ``x`` and ``y``, or has no point.
        FileNotFoundError: if there is no such file.
    """
    strokes = []
    for number, stroke in enumerate(_root(Path(path)).iterfind(".//StrokeSet/Stroke"), 1):
        try:
            points = np.array(
                [[float(p.get(k, "")) for k in "xy"] for p in stroke.iterfind("Point")]
            )
        except ValueError:
            points = np.full((1, 2), np.nan)
        if not (np.abs(points) < _FARTHEST).all():
            raise BrokenFileError(
                f"{path}: stroke {number} has a point whose x or y is not a finite number below "
                f"{_FARTHEST:g}"
            )
        if len(points):
            strokes.append(points)
    if not strokes:
        raise BrokenFileError(f"{path} has no point of a stroke")
    return drawing(strokes)


def _root(path: Path) -> ElementTree.Element:
    """Parse an xml file without entities and return its root."""

    def refuse(name: str, *_: object) -> NoReturn:
        # a short entity can expand to any number of bytes
        raise BrokenFileError(f"{path} has a declaration of the entity {name!r}: none is read")

    # xml must not begin with a byte order mark or blank lines, which editors may leave
    data = unpack(path).removeprefix(codecs.BOM_UTF8).lstrip()
    tree, parser = ElementTree.TreeBuilder(), expat.ParserCreate()
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler, parser.EndElementHandler = tree.start, tree.end
    try:
        parser.Parse(data, True)
        return tree.close()
    except BrokenFileError:
        raise
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise BrokenFileError(f"{path} is not a whole xml: {error}") from None


def _form(path: Path) -> str:
    """Return the form that a line belongs to: its file's name up to the last hyphen."""
    return path.stem.rpartition("-")[0]


def load_iam(data_dir: str | Path | None) -> DrawnParts:
    """Read all lines; a fixed random twentieth of the forms is for validation, another for test.

    Args:
        data_dir: folder of ``a01/a01-000/a01-000u-01.xml`` and so on, or one with them in a folder
            ``lineStrokes``. The name up to the last hyphen is the form.

    Raises:
        ValueError: if there are fewer than three forms, or a file is broken.
        FileNotFoundError: if ``data_dir`` is None.
    """
    folder = users_folder(data_dir, "lineStrokes")
    folder = inner_folder(folder, "lineStrokes") or folder
    paths = files_below(folder, ".xml")
    forms = sorted({_form(path) for path in paths})
    if len(forms) < 3:
        raise ValueError(f"{folder} must hold xml files of three forms or more, got {len(forms)}")
    train, val, test = (
        [read_iam(path) for path in paths if _form(path) in part]
        for part in map(set, two_held_out(forms, 20))
    )
    return DrawnParts(train, val, test)


FILE = "kanjivg_rdp100.npz"


def load_kanjivg(data_dir: str | Path | None) -> DrawnParts:
    """Read ``kanjivg_rdp100.npz``, in the folder or in its folder ``handwriting``.

    Raises:
        BrokenFileError: if the file is broken.
        FileNotFoundError: if the file is missing.
    """
    (path,) = find_texts(users_folder(data_dir, FILE), "handwriting", [FILE])
    return read_kanjivg(path)


def read_kanjivg(path: str | Path) -> DrawnParts:
    """Read the characters of three parts; nothing in the file is unpickled.

    Args:
        path: the npz file, which may be compressed once more. Each of the parts ``train``,
            ``valid`` and ``test`` has three arrays: ``{part}_dxdy`` ``(P, 2)``, the offsets of all
            points; ``{part}_pen_up`` ``(P,)``, 1 where the pen is lifted after a point; and
            ``{part}_offsets`` ``(C + 1,)``, the first point of each character.

    Raises:
        BrokenFileError: if the file is not an npz archive, an array is missing, pickled, truncated
            or of another shape, an offset is not finite, or a character has no point or does not
            end with the pen lifted.
        FileNotFoundError: if there is no such file.
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
    """Read the named arrays of an npz file, which must hold plain numbers."""
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
    # numpy raises many kinds of errors for a broken archive
    except Exception as error:
        raise BrokenFileError(f"{path}, {name} cannot be read: {error}") from None
    return arrays


def _characters(
    offsets: NDArray[np.generic],
    pen_up: NDArray[np.generic],
    starts: NDArray[np.generic],
    where: str,
) -> list[Drawing]:
    """Check the arrays of a part and cut them into characters."""
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


def load_pendigits(data_dir: str | Path | None) -> DrawnParts:
    """Read ``pendigits.tra`` and ``.tes``: digits of 8 points, each as one stroke.

    A fixed random tenth of the training digits is for validation. The files do not tell where the
    pen was lifted.

    Args:
        data_dir: folder of the files, or one with them in ``timeseries/PenDigits``.

    Raises:
        BrokenFileError: if a file is broken.
        ValueError: if there are fewer than two digits to train and to validate.
        FileNotFoundError: if a file is missing.
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
    # y points upwards in the files, downwards in a Drawing
    x, labels = read_uci(path, 2)
    for number, points in enumerate(x, 1):
        if not (np.abs(points) < _FARTHEST).all():
            raise BrokenFileError(
                f"{path}: drawing {number} has a point whose x or y is not below {_FARTHEST:g}"
            )
    return [drawing([p * [1.0, -1.0]], label) for p, label in zip(x, labels, strict=True)]
