"""Reader of plain or compressed texts, which locates what is broken in them."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from rnnorm.experiments.files import BrokenFileError, file_exists, unpack

ENDINGS = ("", ".gz", ".xz", ".zip")
# control characters other than tab, line feed, form feed and return, which no text holds
_BINARY = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
# longest marks first, since the mark of UTF-32 begins with that of UTF-16
_MARKS = {
    codecs.BOM_UTF8: "UTF-8-sig",
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def find_text(folder: Path, name: str) -> Path | None:
    """Find a file by its published name in a folder, plain or with a compressed file's ending.

    The file may also be in a sub-folder of its own name, since some programs unpack so.
    """
    names = [f"{name}{ending}" for ending in ENDINGS]
    paths = (parent / each for parent in (folder, folder / name) for each in names)
    return next((path for path in paths if file_exists(path)), None)


def find_texts(folder: Path, sub_folder: str, names: Sequence[str]) -> list[Path]:
    """Find files by their published names in a folder or in its sub-folder.

    Raises:
        FileNotFoundError: if a file is missing.
    """
    found = [find_text(folder, name) for name in names]
    if None in found and (folder / sub_folder).is_dir():
        folder /= sub_folder
        found = [find_text(folder, name) for name in names]
    if missing := [name for name, path in zip(names, found, strict=True) if path is None]:
        endings = ", ".join(ending for ending in ENDINGS if ending)
        raise FileNotFoundError(
            f"{folder} lacks {', '.join(missing)} (plain, or ending with {endings}): put them "
            "there, or name another folder with --data-dir"
        )
    return [path for path in found if path is not None]


def read_text(path: str | Path) -> str:
    """Read a whole UTF-8 text, from a plain file or a compressed one (gzip, .xz or .zip).

    Args:
        path: the file; a .zip must hold one file alone.

    Returns:
        The text, as :func:`as_text` has it.

    Raises:
        BrokenFileError: if the file is empty, truncated, corrupted, binary, not UTF-8 or too large.
        FileNotFoundError: if there is no such file.
    """
    path = Path(path)
    return as_text(unpack(path), path)


def placed_lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """Yield the position of each line of a text, such as ``words.txt, line 3``, and the line.

    Blank lines are left out.

    Raises:
        BrokenFileError, FileNotFoundError: if :func:`read_text` refuses the file.
    """
    for number, line in numbered_lines(read_text(path)):
        yield f"{path}, line {number}", line


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text that are not blank, each with its number from 1 on."""
    return ((i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip())


def as_text(data: bytes, path: object) -> str:
    """Decode a file's bytes as a text.

    Args:
        data: the bytes, in UTF-8, or in UTF-16 or UTF-32 with a byte order mark.
        path: the file, for the error.

    Returns:
        The text without its byte order mark, with line feeds as the only line ends. Carriage
        returns count as line ends only in a text without line feeds.

    Raises:
        BrokenFileError: if the data are empty, binary or in another encoding.
    """
    code = next((code for mark, code in _MARKS.items() if data.startswith(mark)), "UTF-8")
    try:
        text = data.decode(code)
    except UnicodeDecodeError as error:
        if error.end >= len(data) and error.reason in ("unexpected end of data", "truncated data"):
            raise BrokenFileError(
                f"{path} is truncated: it ends in the middle of a character at byte {error.start}"
            ) from None
        raise BrokenFileError(
            f"{path} is no {code.removesuffix('-sig')} text: it has {data[error.start]:02x} at "
            f"byte {error.start}"
        ) from None
    if not text:
        raise BrokenFileError(f"{path} is empty: it has no text at byte 0")
    if bad := _BINARY.search(text):
        at = len(text[: bad.start()].encode(code))
        raise BrokenFileError(f"{path} is binary: it has {ord(bad.group()):02x} at byte {at}")
    text = text.replace("\r\n", "\n")
    # splitting at a return within a line would shift the line against its translation
    return text if "\n" in text else text.replace("\r", "\n")


def line_and_column(text: str, position: int) -> str:
    """Return line and column, from 1 on, of the character with this index."""
    line, column = text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)
    return f"line {line}, column {column}"
