"""Reader of texts, plain or compressed, that finds what is broken in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from rnnorm.experiments.data.whole_file import BrokenFileError, unpack

ENDINGS = ("", ".gz", ".xz", ".zip")
# what no text holds: control characters other than tab, line feed, form feed and return
_BINARY = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")


def find_text(folder: Path, name: str) -> Path | None:
    """The file of a published name in a folder, plain or with the ending of a compressed one."""
    paths = (folder / f"{name}{ending}" for ending in ENDINGS)
    return next((path for path in paths if path.is_file()), None)


def find_texts(folder: Path, sub_folder: str, names: Sequence[str]) -> list[Path]:
    """The files of published names in a folder, or in its sub-folder.

    Raises:
        FileNotFoundError: one is missing.
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
    """Read a whole UTF-8 text, from a plain file or one that ends with .gz, .xz or .zip.

    Args:
        path: the file; a .zip must hold one file alone.

    Returns:
        The text, without a byte order mark, and with line feeds alone at the ends of lines.

    Raises:
        BrokenFileError: the file is empty, truncated, corrupted, binary, not UTF-8 or too large.
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    return as_text(unpack(path), path)


def placed_lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """Where each line of a text stands, such as ``words.txt, line 3``, and the line.

    Raises:
        BrokenFileError, FileNotFoundError: as :func:`read_text`.
    """
    for number, line in enumerate(read_text(path).removesuffix("\n").split("\n"), 1):
        yield f"{path}, line {number}", line


def as_text(data: bytes, path: object) -> str:
    """A file's bytes as a text.

    Args:
        data: the bytes.
        path: the file, for the error.

    Raises:
        BrokenFileError: they are none, binary or not UTF-8.
    """
    # a byte order mark is none of it
    if not data.removeprefix(b"\xef\xbb\xbf"):
        raise BrokenFileError(f"{path} is empty: it has no text at byte 0")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.end >= len(data) and "unexpected end" in error.reason:
            raise BrokenFileError(
                f"{path} is truncated: it ends in the middle of a character at byte {error.start}"
            ) from None
        raise BrokenFileError(
            f"{path} is no UTF-8 text: it has {data[error.start]:02x} at byte {error.start}"
        ) from None
    if bad := _BINARY.search(text):
        at = len(text[: bad.start()].encode())
        raise BrokenFileError(f"{path} is binary: it has {ord(bad.group()):02x} at byte {at}")
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def place(text: str, position: int) -> str:
    """Line and column, from 1 on, of the character with this index."""
    line, column = text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)
    return f"line {line}, column {column}"
