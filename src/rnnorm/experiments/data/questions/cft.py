"""The files of the Children's Fairy Tale set: passages, query and answer in their last line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rnnorm.experiments.data.questions.cmrc import check_blanks
from rnnorm.experiments.data.questions.question import (
    Question,
    check_question,
    numbered_lines,
    with_blank,
)
from rnnorm.experiments.data.text_file import read_text
from rnnorm.experiments.data.whole_file import BrokenFileError


def read_cft(path: Path) -> Iterator[Question]:
    """Read passages, ``n ||| sentence`` a line, the last one ``n ||| query ||| answer``.

    A question whose query is left empty, as the published file of human questions has one, is left
    out.

    Args:
        path: the file.

    Raises:
        BrokenFileError: a line is neither, a query has not one blank, or the last question is cut
            off.
        FileNotFoundError: there is no such file.
    """
    sentences: list[list[str]] = []
    i = 0
    for i, line in numbered_lines(read_text(path)):
        mark, *fields = [field.strip() for field in line.split("|||")]
        if mark != str(len(sentences) + 1):
            raise BrokenFileError(
                f"{path} has {mark[:20]!r} in line {i}, not sentence {len(sentences) + 1}"
            )
        if len(fields) == 1:
            sentences.append(with_blank(fields[0]))
            continue
        if len(fields) != 2 or len(fields[1].split()) != 1:
            raise BrokenFileError(f"{path} has no sentence, nor query and answer, in line {i}")
        query, read = with_blank(fields[0]), sentences
        sentences = []
        if not query:
            continue
        check_blanks(query, 1, path, i)
        yield check_question(Question(read, query, fields[1], f"{path}, line {i}"))
    if sentences:
        raise BrokenFileError(f"{path} is truncated: it ends in line {i} without a query")
