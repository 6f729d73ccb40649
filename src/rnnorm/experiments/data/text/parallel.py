"""Sentences of two languages, line by line: readers and minibatches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rnnorm.experiments.console import check_choice
from rnnorm.experiments.data.batches import WholeMinibatches, two_held_out
from rnnorm.experiments.data.text_file import find_texts, read_text
from rnnorm.experiments.files import BrokenFileError, users_file, users_folder

ParallelDataset = Literal["multi30k", "files"]
_PARTS = {"train": "train", "val": "val", "test": "test_2016_flickr"}


class Pair(NamedTuple):
    """The words of a sentence and of its translation.

    Attributes:
        source: words to translate, one or more.
        target: words of the translation, one or more.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]


class ParallelParts(NamedTuple):
    """Three disjoint parts of a set, and notes about what was left out."""

    train: list[Pair]
    val: list[Pair]
    test: list[Pair]
    notes: list[str]


def read_parallel(source: str | Path, target: str | Path, lower: bool = True) -> list[Pair]:
    """Read two files whose n-th lines are translations of each other.

    Args:
        source: file of sentences, plain or compressed: one on each line, with spaces between words.
        target: file of their translations.
        lower: whether to convert words to lower case.

    Raises:
        BrokenFileError: if a file is broken, a line is empty, or one file has more lines than the
            other.
        FileNotFoundError: if there is no such file.
    """
    sides = [words_of_lines(read_text(path), path, lower) for path in (source, target)]
    lines = [len(side) for side in sides]
    if lines[0] != lines[1]:
        raise BrokenFileError(
            f"{target} must have a line for each of {source}: they have {lines[1]} and {lines[0]}"
        )
    return [Pair(*pair) for pair in zip(*sides, strict=True)]


def words_of_lines(text: str, path: object, lower: bool) -> list[tuple[str, ...]]:
    """Split each line of a text into words, in lower case if ``lower``.

    Raises:
        BrokenFileError: if a line is empty.
    """
    lines = text.removesuffix("\n").split("\n")
    sentences = [tuple((line.lower() if lower else line).split()) for line in lines]
    empty = next((number for number, words in enumerate(sentences, 1) if not words), None)
    if empty is not None:
        raise BrokenFileError(f"{path}, line {empty} is empty: each line must be a sentence")
    return sentences


def load_parallel(
    dataset: ParallelDataset,
    data_dir: str | Path | None,
    languages: tuple[str, str] = ("de", "en"),
    files: tuple[str, str] | None = None,
    lower: bool = True,
) -> ParallelParts:
    """Read a set by name.

    Args:
        dataset: ``"multi30k"``: the published tokenised files in lower case, such as
            ``train.lc.norm.tok.de``, in the folder or in its ``multi30k``, with the test set of
            2016. ``"files"``: two files of the user, of which a fixed random tenth is for
            validation and another for test; repeated pairs are left out.
        data_dir: the folder.
        languages: endings of the source and the target files of ``"multi30k"``.
        files: source and target file of ``"files"``, relative to the folder or absolute.
        lower: whether to convert words to lower case.

    Raises:
        ValueError: if the name is unknown, ``files`` is given without ``"files"`` or missing with
            it, or there are too few pairs.
        FileNotFoundError: if a file is missing.
        BrokenFileError: if a file is broken.
    """
    check_choice(ParallelDataset, dataset=dataset)
    if (dataset == "files") != (files is not None):
        raise ValueError(
            f"source and target must name the files of dataset 'files' alone, got {files}"
        )
    if files is not None:
        source, target = (users_file(data_dir, file) for file in files)
        return _split(read_parallel(source, target, lower), files)
    names = [f"{part}.lc.norm.tok.{end}" for part in _PARTS.values() for end in languages]
    paths = find_texts(users_folder(data_dir, "multi30k"), "multi30k", names)
    pairs = zip(paths[::2], paths[1::2], strict=True)
    train, val, test = (read_parallel(*pair, lower) for pair in pairs)
    return ParallelParts(train, val, test, [])


def _split(pairs: Iterable[Pair], files: tuple[str, str]) -> ParallelParts:
    pairs = list(pairs)
    # a pair on both sides of the split would have been learned by heart
    once = list(dict.fromkeys(pairs))
    notes = []
    if again := len(pairs) - len(once):
        notes.append(f"{' and '.join(files)}: {again} pairs twice left out")
    if len(once) // 10 < 2:
        raise ValueError(
            f"{' and '.join(files)} have too few pairs: two tenths are held out, of {len(once)}"
        )
    return ParallelParts(*two_held_out(once), notes)


class ParallelBatch(NamedTuple):
    """A right-padded minibatch of sentences and their translations.

    Attributes:
        source: numbers of words ``(S, B)``.
        source_lengths: words of each sentence ``(B,)``.
        target: numbers of words ``(T, B)``, the end of each translation included.
        target_lengths: numbers of each translation ``(B,)``.
    """

    source: Tensor
    source_lengths: Tensor
    target: Tensor
    target_lengths: Tensor


class ParallelBatches(WholeMinibatches[ParallelBatch]):
    """Minibatches of random pairs; without a seed, of all pairs in the order of the data.

    Args:
        pairs: numbers of the words of a sentence and of its translation, ``(N,)`` each; the
            translation ends with the end symbol.
        batch_size: rows of a minibatch.
        seed: seed of the order, or None for the order of the data.
    """

    def __init__(
        self, pairs: Sequence[tuple[Tensor, Tensor]], batch_size: int, seed: int | None = None
    ) -> None:
        super().__init__(len(pairs), batch_size, seed)
        self.pairs = pairs

    def batch(self, number: int, drawn: list[NDArray[np.int64]]) -> ParallelBatch:
        """Return a minibatch of the drawn order."""
        sources, targets = zip(*(self.pairs[i] for i in drawn[number].tolist()), strict=True)
        return ParallelBatch(
            # padding is never read, but must be the number of a word
            pad_sequence(list(sources)),
            torch.tensor([len(source) for source in sources]),
            pad_sequence(list(targets)),
            torch.tensor([len(target) for target in targets]),
        )
