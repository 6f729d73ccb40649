"""text8: one line of 27 symbols, split into training, validation and test text."""

from __future__ import annotations

import re
from pathlib import Path

from rnnorm.experiments.data.text_file import place
from rnnorm.experiments.data.whole_file import BrokenFileError

_OTHER = re.compile(r"[^a-z ]")


def check_text8(text: str, path: Path) -> str:
    """The text itself, if it has the letters a to z and the space alone.

    Raises:
        BrokenFileError: it has another character.
    """
    # some copies end with line feeds
    text = text.rstrip("\n")
    if other := _OTHER.search(text):
        raise BrokenFileError(
            f"{path} is not text8: it has {other.group()!r} in {place(text, other.start())}, "
            "not a letter a to z or a space"
        )
    return text


def split(size: int) -> tuple[slice, slice, slice]:
    """Training, validation and test part of a text: 90, 5 and 5 per cent.

    For text8 these are the first 90 million, the next 5 and the last 5 million characters.

    Args:
        size: length of the text.
    """
    held = size // 20
    return slice(0, size - 2 * held), slice(size - 2 * held, size - held), slice(size - held, size)
