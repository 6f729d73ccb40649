"""Texts, each in a fixed split for training, validation and test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor

from rnnorm.experiments.console import check_choice
from rnnorm.experiments.data.text.vocabulary import Vocabulary
from rnnorm.experiments.data.text_file import find_texts, line_and_column, read_text
from rnnorm.experiments.files import BrokenFileError, file_exists, users_file, users_folder

END = "<eos>"
_LINE_ENDS = re.compile(r"\n+")
# two symbols without a space between
_JOINED = re.compile(r"[^ \n]{2}")


def sentence_words(text: str, path: Path) -> list[str]:
    """Split ``ptb.{train,valid,test}.txt`` into words, with an end symbol after each line.

    Args:
        text: the file's text: words separated by spaces. Blank lines are left out.
        path: the file, for the error.

    Raises:
        BrokenFileError: if the last line lacks a line feed.
    """
    _check_end(text, path)
    sentences = (line.split() for line in text.split("\n"))
    return [word for words in sentences if words for word in (*words, END)]


def sentence_characters(text: str, path: Path) -> str:
    """Extract the characters of ``ptb.char.{train,valid,test}.txt``, line feeds included.

    Blank lines are left out.

    Args:
        text: the file's text: characters separated by spaces, ``_`` for the space between words.
        path: the file, for the error.

    Raises:
        BrokenFileError: if two characters are not separated, or the last line lacks a line feed.
    """
    if joined := _JOINED.search(text):
        at = line_and_column(text, joined.start())
        raise BrokenFileError(
            f"{path} has {joined.group()!r} in {at}, where characters are separated by spaces"
        )
    _check_end(text, path)
    return _LINE_ENDS.sub("\n", text.replace(" ", "")).lstrip("\n")


def _check_end(text: str, path: Path) -> None:
    # the published character files have a space behind the last line feed
    if not text.rstrip(" ").endswith("\n"):
        at = line_and_column(text, len(text))
        raise BrokenFileError(
            f"{path} is truncated: it ends in {at}, where its last line has "
            "no end: add a line feed if nothing is missing"
        )


_OTHER = re.compile(r"[^a-z ]")


def check_text8(text: str, path: Path) -> str:
    """Check that a text has only the letters a to z and spaces, and return it.

    Raises:
        BrokenFileError: if the text has another character.
    """
    # some copies end with line feeds
    text = text.rstrip("\n")
    if other := _OTHER.search(text):
        at = line_and_column(text, other.start())
        raise BrokenFileError(
            f"{path} is not text8: it has {other.group()!r} in {at}, not a letter a to z or a space"
        )
    return text


def split(size: int) -> tuple[slice, slice, slice]:
    """Split a text into 90, 5 and 5 per cent for training, validation and test.

    For text8 these are the first 90 million, the next 5 and the last 5 million characters.

    Args:
        size: length of the text.
    """
    held = size // 20
    return slice(0, size - 2 * held), slice(size - 2 * held, size - held), slice(size - held, size)


Dataset = Literal["ptb-char", "ptb-word", "text8", "text"]
#: the end symbol of a sentence or a line, for each text that has one
ENDS = {"ptb-char": "\n", "ptb-word": END, "text": "\n"}


class Text(NamedTuple):
    """Numbers of a text's symbols ``(N,)``, and the file that holds the text."""

    symbols: Tensor
    source: str


class Corpus(NamedTuple):
    """Three disjoint parts of a text, and their common vocabulary."""

    train: Text
    val: Text
    test: Text
    vocabulary: Vocabulary


def load_corpus(
    dataset: Dataset, data_dir: str | Path | None = None, file: str | Path | None = None
) -> Corpus:
    """Load a text by name.

    Each file may be plain or end with ``.gz``, ``.xz`` or ``.zip``.

    Args:
        dataset: ``"ptb-char"`` (``ptb.char.{train,valid,test}.txt``, characters separated by
            spaces), ``"ptb-word"`` (``ptb.{train,valid,test}.txt``, with an end symbol for each
            line), ``"text8"``, or ``"text"`` for the characters of any UTF-8 file. The last two
            are split 90/5/5 per cent, in this order.
        data_dir: folder of the files, or one with them in a sub-folder ``ptb`` or ``text8``.
        file: the file of ``"text"``, or another name for that of ``"text8"``; relative to
            ``data_dir`` if there is one.

    Raises:
        ValueError: if the name is unknown, or ``file`` does not go with it.
        BrokenFileError: if a file is broken or incomplete, or a part of the text is empty.
        FileNotFoundError: if there is no such file.
    """
    check_choice(Dataset, dataset=dataset)
    if dataset in ("ptb-char", "ptb-word"):
        if file is not None:
            raise ValueError(f"file must be None for {dataset}, which has three, got {file!r}")
        return _ptb(dataset, data_dir)
    return _one_file(dataset, data_dir, file)


def _ptb(dataset: str, data_dir: str | Path | None) -> Corpus:
    kind = "char." if dataset == "ptb-char" else ""
    names = [f"ptb.{kind}{part}.txt" for part in ("train", "valid", "test")]
    paths = _find(names, data_dir, "ptb")
    texts = [read_text(path) for path in paths]
    both = list(zip(texts, paths, strict=True))
    cut: Any = sentence_characters if kind else sentence_words
    symbols = [cut(text, path) for text, path in both]
    vocabulary = Vocabulary(symbols[0])
    number: Any = vocabulary.characters if kind else vocabulary.words
    train, val, test = (
        Text(number(s, *where), str(where[1])) for s, where in zip(symbols, both, strict=True)
    )
    return Corpus(train, val, test, vocabulary)


def _one_file(dataset: str, data_dir: str | Path | None, file: str | Path | None) -> Corpus:
    if file is not None:
        path = users_file(data_dir, file)
        if not file_exists(path):
            raise FileNotFoundError(f"there is no text file {path}")
    elif dataset == "text":
        raise ValueError("file must name the text for dataset 'text', got None")
    else:
        (path,) = _find(["text8"], data_dir, "text8")
    text = read_text(path)
    characters = check_text8(text, path) if dataset == "text8" else text
    vocabulary = Vocabulary(characters)
    symbols = vocabulary.characters(characters, text, path)
    parts = []
    for name, part in zip(("training", "validation", "test"), split(len(symbols)), strict=True):
        if part.start == part.stop:
            raise BrokenFileError(
                f"{path} has no {name} part: it ends after {len(symbols)} symbols, of which 5 per "
                "cent must be at least one"
            )
        parts.append(Text(symbols[part], f"{path}, symbols {part.start} to {part.stop}"))
    train, val, test = parts
    return Corpus(train, val, test, vocabulary)


def _find(names: list[str], data_dir: str | Path | None, sub_folder: str) -> list[Path]:
    return find_texts(users_folder(data_dir, ", ".join(names)), sub_folder, names)
