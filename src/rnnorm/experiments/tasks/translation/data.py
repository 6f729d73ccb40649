"""Data of sentences and their translations: Multi30k, or two files of the user."""

from __future__ import annotations

from typing import Any

import torch

from rnnorm.experiments.console import check_at_least
from rnnorm.experiments.data.loaded_data import LoadedData
from rnnorm.experiments.data.text.parallel import ParallelBatches, ParallelDataset, load_parallel
from rnnorm.experiments.data.text.vocabulary import END, UNKNOWN, Vocabulary, WordNumbers
from rnnorm.experiments.models.bleu import signature


class TranslationData(LoadedData):
    """Pairs in minibatches ``ParallelBatch``.

    Args:
        dataset: ``"multi30k"`` or ``"files"``, see
            :func:`rnnorm.experiments.data.text.parallel.load_parallel`.
        source_language: ending of the source files of ``"multi30k"``.
        target_language: ending of the files of their translations.
        source: source file of ``"files"``, relative to ``data_dir`` or absolute.
        target: file of the translations of ``"files"``.
        lower: whether to convert words to lower case.
        words: size of each vocabulary, the most frequent words of the training sentences.
        longest: most words of a sentence in a training pair; longer ones are left out. None for no
            limit.
        train_size: keep only this many training pairs; the vocabularies are those of all.
        **shared: arguments of :class:`rnnorm.experiments.data.loaded_data.LoadedData`.

    Attributes:
        source, target: the numbers of the words, once the data are loaded.

    Raises:
        ValueError: if a size is less than 1.
    """

    def __init__(
        self,
        dataset: ParallelDataset = "multi30k",
        source_language: str = "de",
        target_language: str = "en",
        source: str | None = None,
        target: str | None = None,
        lower: bool = True,
        words: int = 5000,
        longest: int | None = None,
        train_size: int | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        check_at_least(1, words=words, longest=longest)
        self.source = self.target = WordNumbers(Vocabulary(()))

    def load(self) -> dict[str, ParallelBatches]:
        """Read and number the sentences.

        Raises:
            ValueError: if a file is broken, the files do not fit each other, or there are too few
                pairs.
            FileNotFoundError: if a file is missing.
        """
        given = self.hparams
        languages = (given["source_language"], given["target_language"])
        source, target = given["source"], given["target"]
        named = source is not None or target is not None
        if named and None in (source, target):
            raise ValueError(
                f"source and target must both name a file, or none, got {source} and {target}"
            )
        files = (source, target) if named else None
        *parts, self.notes = load_parallel(
            given["dataset"], given["data_dir"], languages, files, given["lower"]
        )
        train, most = parts[0], given["longest"]
        self.source, self.target = (
            WordNumbers(Vocabulary.frequent(words, given["words"]))
            for words in zip(*train, strict=True)
        )
        if most is not None:
            parts[0] = [pair for pair in train if max(map(len, pair)) <= most]
            if not parts[0]:
                raise ValueError(f"longest must leave a training pair, got {most}")
            left = len(train) - len(parts[0])
            self.notes.append(f"training: {left} pairs of more than {most} words left out")
        loaders = {}
        for part, pairs in zip(("train", "val", "test"), parts, strict=True):
            pairs = pairs[: given["train_size"] if part == "train" else None]
            end = torch.tensor([END])
            numbered = [
                (self.source.numbers(p.source), torch.cat([self.target.numbers(p.target), end]))
                for p in pairs
            ]
            loaders[part] = ParallelBatches(numbered, *self.rows_and_seed(part))
            sides = [torch.cat(side) for side in zip(*numbered, strict=True)]
            unknown = [f"{100 * (side == UNKNOWN).double().mean():.1f} %" for side in sides]
            self.notes.append(
                f"{part}: {len(pairs)} pairs, unknown words {unknown[0]} and {unknown[1]}"
            )
        self.notes.append(f"BLEU: sacrebleu {signature()}, of words with spaces between")
        return loaders

    def state_dict(self) -> dict[str, Any]:
        """Return the vocabularies, which a checkpoint keeps."""
        return {
            "source": list(self.source.vocabulary.symbols),
            "target": list(self.target.vocabulary.symbols),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse a checkpoint with other vocabularies.

        Raises:
            ValueError: if the vocabularies differ.
        """
        for side, numbers in (("source", self.source), ("target", self.target)):
            if side in state_dict:
                numbers.vocabulary.check_same(
                    state_dict[side], f"the {side} of {self.hparams['dataset']}"
                )
