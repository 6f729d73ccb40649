"""Short texts that people have rated, the files that they come in, and their words."""

from __future__ import annotations

import csv
import html
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

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
# characters of a text of one's own
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
        story: texts of the same one are about the same thing, such as sentences of one review.
    """

    text: str
    rating: float
    story: str


def read_rated(path: str | Path) -> list[Rated]:
    """Read a published file of Hutto & Gilbert 2014: id, mean rating and text, with tabs between.

    Args:
        path: the file, plain or compressed. What stands before an underscore in an id is its story.

    Raises:
        BrokenFileError: if the file is broken: a line has not three fields, an id or a text is
            empty, or a rating is no finite number.
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
    """Read a file of one's own: comma-separated values with the columns ``text`` and ``label``.

    Args:
        path: the file, plain or compressed; its first line names the columns, others are ignored,
            and so are lines without a value.

    Raises:
        BrokenFileError: if the file is broken: a column is missing or there twice, a line has more
            or fewer values than columns, a quotation is not closed, a text is empty, or a label is
            no finite number.
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
        # a spreadsheet leaves columns without a name
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
        told = f"; {how_to_raise()}" if "limit" in str(error) else ""
        raise BrokenFileError(f"{path}, line {lines.line_num}: {error}{told}") from None
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
    """Read a set by name. A fixed random tenth of its stories validates, another tests.

    Args:
        dataset: ``"movies"``, ``"tweets"`` or ``"products"``: the published file of that name, in
            ``data_dir`` or its folder ``sentiment`` (:func:`read_rated`); or ``"csv"``
            (:func:`read_rated_csv`).
        data_dir: the folder.
        file: the file of ``"csv"``, relative to ``data_dir`` if there is one.
        threshold: a text with exactly this rating is left out, and so is one that was there before.

    Raises:
        ValueError: if the name is unknown, ``file`` does not go with it, or the training part has
            not both a text above the threshold and one below.
        BrokenFileError: if the file is broken.
        FileNotFoundError: if it is missing.
    """
    if (dataset == "csv") != (file is not None):
        raise ValueError(f"file must name the file of dataset 'csv' alone, got {file!r}")
    if dataset == "csv":
        assert file is not None
        path = users_file(data_dir, file)
        read = read_rated_csv(path)
    elif dataset in _FILES:
        name = _FILES[dataset]
        (path,) = find_texts(users_folder(data_dir, name), "sentiment", [name])
        read = read_rated(path)
    else:
        raise ValueError(f"dataset must be 'csv' or one of {', '.join(_FILES)}, got {dataset!r}")
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
    """Training, validation and test part, each story in one of them."""
    stories = list(dict.fromkeys(each.story for each in read))
    train, *held = two_held_out(stories)
    of: dict[str, list[Rated]] = {story: [] for story in stories}
    for each in read:
        of[each.story].append(each)
    # a file may have all good texts first, and a minibatch of one class has its own statistics, so
    # those held out are mixed; training is, in each epoch
    chosen = set(train)
    parts = [[each for story in part for each in of[story]] for part in held]
    return [[each for each in read if each.story in chosen], *parts]


#: a word, apostrophes within it, or signs that stand together, such as a smiley
WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]+")


def words_and_signs(text: str) -> list[str]:
    """Words and signs of a text, in small letters, with ``&amp;`` and the like resolved."""
    return WORD.findall(html.unescape(text).lower())
