"""Reader of the ``.question`` files of the CNN and Daily Mail sets (Hermann et al. 2015)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rnnorm.experiments.data.questions.question import Question, check_question
from rnnorm.experiments.data.text_file import read_text
from rnnorm.experiments.files import BrokenFileError, files_below

PLACEHOLDER = "@placeholder"
ENTITY = re.compile(r"@entity\d+")
_PARTS = ("an address", "a document", "a query", "an answer")
_MAPPING = re.compile(r"@entity\d+:.*")
_ENDS = {".", "?", "!"}
_CLOSING = {'"', "'", ")", "''", "\u201d"}


def read_cnn_question(path: str | Path) -> Question:
    """Read one file: address, document, query, answer, and the names of the placeholders.

    Each part is a line followed by a blank line; the names may be missing.

    Args:
        path: the file.

    Raises:
        BrokenFileError: if a part is missing, empty or of the wrong form.
        FileNotFoundError: if there is no such file.
    """
    lines = read_text(path).split("\n")
    for i, name in enumerate(_PARTS):
        at = 2 * i
        if len(lines) <= at or not lines[at].strip():
            raise BrokenFileError(f"{path} has nothing in line {at + 1}, where {name} should be")
        if len(lines) > at + 1 and lines[at + 1].strip():
            raise BrokenFileError(f"{path} has text in line {at + 2}, which should be blank")
    document, query, answer = (lines[i].strip() for i in (2, 4, 6))
    if ENTITY.fullmatch(answer) is None:
        raise BrokenFileError(
            f"{path} has {answer[:40]!r} in line 7, where the answer, an @entity, should be"
        )
    if (blanks := query.split().count(PLACEHOLDER)) != 1:
        raise BrokenFileError(
            f"{path} has {blanks} times {PLACEHOLDER} in line 5, where one should be"
        )
    for i, line in enumerate(lines[8:], 9):
        if line.strip() and _MAPPING.match(line) is None:
            raise BrokenFileError(f"{path} has {line[:40]!r} in line {i}, not @entityN:Name")
    return check_question(
        Question(split_sentences(document.split()), query.split(), answer, str(path))
    )


def read_cnn_part(folder: Path) -> Iterator[Question]:
    """Read the ``.question`` files of a folder one by one, in the order of their names.

    Args:
        folder: the folder, such as ``questions/training``.

    Raises:
        FileNotFoundError: if there is no such folder, or it has no such file.
        BrokenFileError: if a file is broken.
    """
    paths = files_below(folder, ".question")
    if not paths:
        raise FileNotFoundError(f"{folder} has no .question file: name its folder with --data-dir")
    return (read_cnn_question(path) for path in paths)


def split_sentences(words: list[str]) -> list[list[str]]:
    """Split words into sentences behind ``.``, ``?`` or ``!`` and closing quotes."""
    sentences: list[list[str]] = [[]]
    ended = False
    quotes = 0
    for word in words:
        # an opening quote is the odd one: it begins the next sentence
        closing = word in _CLOSING and (word != '"' or quotes % 2 == 1)
        if ended and not closing and word not in _ENDS:
            sentences.append([])
            ended = False
        quotes += word == '"'
        sentences[-1].append(word)
        ended = ended or word in _ENDS
    return sentences
