"""The published layouts of the Penn Treebank: a sentence a line, of words or of characters."""

from __future__ import annotations

import re
from pathlib import Path

from rnnorm.experiments.data.text_file import place
from rnnorm.experiments.data.whole_file import BrokenFileError

END = "<eos>"
_LINE_ENDS = re.compile(r"\n+")
# two symbols that no space separates
_JOINED = re.compile(r"[^ \n]{2}")


def sentence_words(text: str, path: Path) -> list[str]:
    """Words of ``ptb.{train,valid,test}.txt``, with an end symbol for each line that has words.

    Args:
        text: the file's text: words separated by spaces.
        path: the file, for the error.

    Raises:
        BrokenFileError: the last line has no end.
    """
    _check_end(text, path)
    sentences = (line.split() for line in text.split("\n"))
    return [word for words in sentences if words for word in (*words, END)]


def sentence_characters(text: str, path: Path) -> str:
    """Characters of ``ptb.char.{train,valid,test}.txt``, the line end among them.

    Blank lines are left out.

    Args:
        text: the file's text: characters separated by spaces, ``_`` for the space between words.
        path: the file, for the error.

    Raises:
        BrokenFileError: two characters are not separated, or the last line has no end.
    """
    if joined := _JOINED.search(text):
        raise BrokenFileError(
            f"{path} has {joined.group()!r} in {place(text, joined.start())}, where characters are "
            "separated by spaces"
        )
    _check_end(text, path)
    return _LINE_ENDS.sub("\n", text.replace(" ", "")).lstrip("\n")


def _check_end(text: str, path: Path) -> None:
    # the published character files have a space behind the last line's end
    if not text.rstrip(" ").endswith("\n"):
        raise BrokenFileError(
            f"{path} is truncated: it ends in {place(text, len(text))}, where its last line has "
            "no end: add a line feed if nothing is missing"
        )
