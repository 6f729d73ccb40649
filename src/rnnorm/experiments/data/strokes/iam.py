"""A user's IAM-OnDB: lines of handwriting on a whiteboard, an xml file each."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree
from xml.parsers import expat

import numpy as np

from rnnorm.experiments.data.held_out import two_held_out
from rnnorm.experiments.data.strokes.strokes import Drawing, DrawnParts, drawing
from rnnorm.experiments.data.users_folder import files_below, inner_folder, users_folder
from rnnorm.experiments.data.whole_file import BrokenFileError, unpack


def read_iam(path: str | Path) -> Drawing:
    """Read the strokes of a line.

    Args:
        path: the xml file, of any encoding that it declares: a ``StrokeSet`` of ``Stroke`` of
            ``Point`` with ``x`` and ``y``.

    Raises:
        BrokenFileError: the file is broken, such as cut short; it declares entities; a point has no
            finite ``x`` or ``y``; or there is no point.
        FileNotFoundError: there is no such file.
    """
    strokes = []
    for number, stroke in enumerate(_root(Path(path)).iterfind(".//StrokeSet/Stroke"), 1):
        try:
            points = np.array(
                [[float(p.get(k, "")) for k in "xy"] for p in stroke.iterfind("Point")]
            )
        except ValueError:
            points = np.full((1, 2), np.nan)
        # what is drawn is held in float32
        if not (np.abs(points) < 1e9).all():
            raise BrokenFileError(
                f"{path}: stroke {number} has a point whose x or y is no finite number"
            )
        if len(points):
            strokes.append(points)
    if not strokes:
        raise BrokenFileError(f"{path} has no point of a stroke")
    return drawing(strokes)


def _root(path: Path) -> ElementTree.Element:
    def refuse(name: str, *_: object) -> NoReturn:
        # an entity of a few bytes can stand for any number of them
        raise BrokenFileError(f"{path} has a declaration of the entity {name!r}: none is read")

    # an xml must not begin with the blank lines that an editor leaves
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
        raise BrokenFileError(f"{path} is no whole xml: {error}") from None


def _form(path: Path) -> str:
    return path.stem.rpartition("-")[0]


def load_iam(data_dir: str | Path | None) -> DrawnParts:
    """Read all lines; a fixed random twentieth of the forms validates, another tests.

    Args:
        data_dir: holds ``lineStrokes/a01/a01-000/a01-000u-01.xml`` and so on, itself or in a
            folder ``lineStrokes``. What stands before the last hyphen is a form.

    Raises:
        ValueError: there are fewer than three forms, or a file is broken.
        FileNotFoundError: no folder is named.
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
