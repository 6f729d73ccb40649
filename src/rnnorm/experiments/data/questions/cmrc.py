"""Readers of CMRC 2017 and of the Children's Fairy Tale set."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rnnorm.experiments.data.questions.question import (
    BLANK,
    Question,
    check_question,
    with_blank,
)
from rnnorm.experiments.data.text_file import numbered_lines, read_text
from rnnorm.experiments.files import BrokenFileError

_QUERY = re.compile(r"<qid_(\d+)>")


def read_cmrc(documents: Path, answers: Path, blank: bool = True) -> Iterator[Question]:
    """Read passages: lines ``n ||| sentence``, then a line ``<qid_k> ||| query``.

    Args:
        documents: the passages' file.
        answers: the file of the answers, a line ``<qid_k> ||| word`` each, in the same order.
        blank: whether each query has one blank ``XXXXX``, or none.

    Raises:
        BrokenFileError: if a line has another form, a query has another number of blanks, or the
            two files do not belong together.
        FileNotFoundError: if a file is missing.
    """
    right = list(_answers(answers))
    sentences: list[list[str]] = []
    number = i = 0
    for i, line in numbered_lines(read_text(documents)):
        mark, text = _fields(line, documents, i)
        if not (found := _QUERY.fullmatch(mark)):
            _check_number(mark, len(sentences) + 1, documents, i)
            sentences.append(with_blank(text))
            continue
        if number >= len(right) or right[number][0] != found.group(1):
            other = f"<qid_{right[number][0]}>" if number < len(right) else "no answer"
            raise BrokenFileError(
                f"{answers} does not belong to {documents}: line {i} there is {mark}, and its "
                f"answer should be number {number + 1}, where there is {other}"
            )
        query = with_blank(text)
        check_blanks(query, 1 if blank else 0, documents, i)
        yield check_question(Question(sentences, query, right[number][1], f"{documents}, line {i}"))
        sentences, number = [], number + 1
    if sentences:
        raise BrokenFileError(f"{documents} is truncated: it ends in line {i} without a query")
    if number < len(right):
        raise BrokenFileError(
            f"{answers} has {len(right)} answers, {documents} has {number} queries"
        )


def check_blanks(query: list[str], expected: int, path: Path, line: int) -> None:
    """Refuse a query with an unexpected number of blanks.

    Raises:
        BrokenFileError: if the query has another number of blanks.
    """
    if (blanks := query.count(BLANK)) != expected:
        raise BrokenFileError(
            f"{path} has {blanks} times {BLANK} in the query of line {line}, not {expected}"
        )


def _answers(path: Path) -> Iterator[tuple[str, str]]:
    for i, line in numbered_lines(read_text(path)):
        mark, answer = _fields(line, path, i)
        found = _QUERY.fullmatch(mark)
        if not found or len(answer.split()) != 1:
            raise BrokenFileError(
                f"{path} has {line.strip()[:40]!r} in line {i}, not <qid_k> ||| word"
            )
        yield found.group(1), answer


def _fields(line: str, path: Path, number: int) -> list[str]:
    fields = [field.strip() for field in line.split("|||")]
    if len(fields) != 2:
        raise BrokenFileError(f"{path} has {len(fields)} fields in line {number}, not 2")
    return fields


def _check_number(mark: str, expected: int, path: Path, line: int) -> None:
    if mark != str(expected):
        raise BrokenFileError(f"{path} has {mark[:20]!r} in line {line}, not sentence {expected}")


def read_cft(path: Path) -> Iterator[Question]:
    """Read passages: lines ``n ||| sentence``, then a line ``n ||| query ||| answer``.

    A question with an empty query is left out; the published file of human questions has one.

    Args:
        path: the file.

    Raises:
        BrokenFileError: if a line has another form, a query does not have exactly one blank, or the
            last question is cut off.
        FileNotFoundError: if there is no such file.
    """
    sentences: list[list[str]] = []
    i = 0
    for i, line in numbered_lines(read_text(path)):
        mark, *fields = [field.strip() for field in line.split("|||")]
        _check_number(mark, len(sentences) + 1, path, i)
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
