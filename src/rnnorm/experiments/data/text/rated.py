"""Short texts that people have rated: readers, splits and words."""

from __future__ import annotations

import csv
import html
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from rnnorm.experiments.console import check_choice
from rnnorm.experiments.data.batches import two_held_out
from rnnorm.experiments.data.text_file import find_texts, placed_lines, read_text
from rnnorm.experiments.files import (
    BrokenFileError,
    how_to_raise,
    raised_limit,
    users_file,
    users_folder,
)

RatedDataset = Literal["movies", "tweets", "products", "csv"]
# most characters of a text in a user's file
_LONGEST = 1 << 17
_FILES = {
    "movies": "movieReviewSnippets_GroundTruth.txt",
    "tweets": "tweets_GroundTruth.txt",
    "products": "amazonReviewSnippets_GroundTruth.txt",
}


class Rated(NamedTuple):
    """A text and its rating.

    Attributes:
        text: the text.
        rating: any finite number.
        story: key that related texts share, such as the sentences of one review.
    """

    text: str
    rating: float
    story: str


def read_rated(path: str | Path) -> list[Rated]:
    """Read a published file of Hutto & Gilbert 2014: id, mean rating and text, with tabs between.

    Args:
        path: the file, plain or compressed. An id up to its first underscore is the story.

    Raises:
        BrokenFileError: if a line does not have three fields, an id or a text is empty, or a
            rating is not a finite number.
        FileNotFoundError: if there is no such file.
    """
    found = []
    for where, line in placed_lines(path):
        fields = line.split("\t")
        if len(fields) != 3:
            raise BrokenFileError(
                f"{where} must be an id, a rating and a text with tabs between, got {line[:80]!r}"
            )
        name, rating, text = fields
        if not name.strip():
            raise BrokenFileError(f"{where} has no id")
        found.append(_rated(text, rating, name.partition("_")[0], where))
    return found


def read_rated_csv(path: str | Path) -> list[Rated]:
    """Read a user's file of comma-separated values with the columns ``text`` and ``label``.

    Args:
        path: the file, plain or compressed; its first line names the columns. Other columns and
            lines without a value are ignored.

    Raises:
        BrokenFileError: if a column is missing or named twice, a line has more or fewer values than
            columns, a quotation is not closed, a text is empty, or a label is not a finite number.
        FileNotFoundError: if there is no such file.
    """
    csv.field_size_limit(raised_limit(_LONGEST))
    lines = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    found = []
    try:
        rows = (row for row in lines if any(value.strip() for value in row))
        columns = [name.strip() for name in next(rows, [])]
        if missing := {"text", "label"} - set(columns):
            lacking = " and ".join(sorted(missing))
            raise BrokenFileError(f"{path}, line {lines.line_num} must name the columns {lacking}")
        # spreadsheets may leave columns without a name
        if twice := next((name for name in columns if name and columns.count(name) > 1), None):
            raise BrokenFileError(f"{path}, line {lines.line_num} names the column {twice!r} twice")
        for values in rows:
            where = f"{path}, line {lines.line_num}"
            if len(values) != len(columns):
                raise BrokenFileError(
                    f"{where} has {len(values)} values, the columns are {len(columns)}"
                )
            row = dict(zip(columns, values, strict=True))
            found.append(_rated(row["text"], row["label"], str(lines.line_num), where))
    except csv.Error as error:
        remedy = f"; {how_to_raise()}" if "limit" in str(error) else ""
        raise BrokenFileError(f"{path}, line {lines.line_num}: {error}{remedy}") from None
    return found


def _rated(text: str, rating: str, story: str, where: str) -> Rated:
    if not text.strip():
        raise BrokenFileError(f"{where} has no text")
    try:
        number = float(rating)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BrokenFileError(
            f"{where} must have a finite number as its rating, got {rating[:80]!r}"
        )
    return Rated(text.strip(), number, story)


class RatedParts(NamedTuple):
    """Three disjoint parts of a set, and what was left out, in words."""

    train: list[Rated]
    val: list[Rated]
    test: list[Rated]
    notes: list[str]


def load_rated(
    dataset: RatedDataset,
    data_dir: str | Path | None,
    file: str | Path | None = None,
    threshold: float = 0.0,
) -> RatedParts:
    """Read a set by name; a fixed random tenth of its stories is for validation, another for test.

    Args:
        dataset: ``"movies"``, ``"tweets"`` or ``"products"``: the published file of that name, in
            ``data_dir`` or its folder ``sentiment`` (:func:`read_rated`); or ``"csv"``
            (:func:`read_rated_csv`).
        data_dir: the folder.
        file: the file of ``"csv"``, relative to ``data_dir`` if there is one.
        threshold: texts with exactly this rating are left out, and so are repeated texts.

    Raises:
        ValueError: if the name is unknown, ``file`` does not go with it, or the training part lacks
            texts above the threshold or texts below it.
        BrokenFileError: if the file is broken.
        FileNotFoundError: if the file is missing.
    """
    check_choice(RatedDataset, dataset=dataset)
    if (dataset == "csv") != (file is not None):
        raise ValueError(f"file must name the file of dataset 'csv' alone, got {file!r}")
    if dataset == "csv":
        assert file is not None
        path = users_file(data_dir, file)
        read = read_rated_csv(path)
    else:
        name = _FILES[dataset]
        (path,) = find_texts(users_folder(data_dir, name), "sentiment", [name])
        read = read_rated(path)
    first = list({each.text: each for each in reversed(read)}.values())[::-1]
    kept = [each for each in first if each.rating != threshold]
    train, val, test = _split(kept)
    if len({each.rating > threshold for each in train}) < 2 or not test:
        raise ValueError(
            f"{path} has too few texts rated above and below threshold={threshold}: "
            f"{sum(each.rating > threshold for each in kept)} and "
            f"{sum(each.rating < threshold for each in kept)}"
        )
    left_out = ((len(first) - len(kept), f"rated {threshold:g}"), (len(read) - len(first), "twice"))
    notes = [f"{path}: {count} texts {why} left out" for count, why in left_out if count]
    return RatedParts(train, val, test, notes)


def _split(read: Sequence[Rated]) -> list[list[Rated]]:
    """Split texts into training, validation and test part, without dividing a story."""
    stories = list(dict.fromkeys(each.story for each in read))
    train, *held = two_held_out(stories)
    of: dict[str, list[Rated]] = {story: [] for story in stories}
    for each in read:
        of[each.story].append(each)
    # held-out texts are shuffled: a sorted file would give minibatches of one class
    chosen = set(train)
    parts = [[each for story in part for each in of[story]] for part in held]
    return [[each for each in read if each.story in chosen], *parts]


#: a word, which may hold apostrophes, or a run of signs, such as a smiley
WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]+")


def words_and_signs(text: str) -> list[str]:
    """Split a text into words and signs, in lower case, with ``&amp;`` and the like resolved."""
    return WORD.findall(html.unescape(text).lower())
