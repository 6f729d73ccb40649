"""Sentiment of short texts: whether a text is rated above or below a threshold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rnnorm.experiments.console import check_at_least
from rnnorm.experiments.data.batches import subsample
from rnnorm.experiments.data.series import Series, SeriesBatches
from rnnorm.experiments.data.text.rated import WORD, RatedDataset, load_rated, words_and_signs
from rnnorm.experiments.data.text.vocabulary import KeepsVocabulary, Vocabulary
from rnnorm.experiments.models.classifiers import SequenceClassifier
from rnnorm.experiments.models.recurrent_model import whole_sequences


class SentimentData(KeepsVocabulary):
    """Rated texts in minibatches ``SeriesBatch`` of numbered words.

    Class 1 is rated above the threshold, class 0 below it; texts rated exactly at the threshold
    are left out and counted.

    Args:
        dataset: ``"movies"``, ``"tweets"``, ``"products"`` or ``"csv"``, see
            :func:`rnnorm.experiments.data.text.rated.load_rated`.
        file: the file of ``"csv"``.
        threshold: the rating between the classes.
        words: size of the vocabulary, the most frequent words of the training texts.
        train_size: keep only this many training texts, a fixed random choice; the vocabulary is
            that of all.
        **shared: arguments of :class:`rnnorm.experiments.data.loaded_data.LoadedData`.

    Attributes:
        vocabulary: the words, once the data are loaded.

    Raises:
        ValueError: if a size is less than 1.
    """

    def __init__(
        self,
        dataset: RatedDataset = "movies",
        file: str | None = None,
        threshold: float = 0.0,
        words: int = 5000,
        train_size: int | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        check_at_least(1, words=words)

    def load(self) -> dict[str, SeriesBatches]:
        """Read, split and number the texts.

        Raises:
            ValueError: if the file is broken or has too few texts of a class, or ``train_size``
                leaves texts of a single class.
            FileNotFoundError: if the file is missing.
        """
        given = self.hparams
        names = ("dataset", "data_dir", "file", "threshold")
        train, val, test, self.notes = load_rated(*(given[name] for name in names))
        words = [words_and_signs(each.text) for each in train]
        self.vocabulary = Vocabulary.frequent(words, given["words"])
        self.source = f"the training texts of {given['dataset']}"
        loaders = {}
        train = subsample(train, given["train_size"])
        for part, rated in (("train", train), ("val", val), ("test", test)):
            x = [self.vocabulary.numbers(words_and_signs(each.text), 1) for each in rated]
            y = torch.tensor([int(each.rating > given["threshold"]) for each in rated])
            if part == "train" and y.min() == y.max():
                raise ValueError(
                    f"train_size={given['train_size']} leaves training texts of one class alone"
                )
            loaders[part] = SeriesBatches(Series(x, y), *self.rows_and_seed(part))
            self.notes.append(f"{part}: {len(y)} texts, {int(y.sum())} rated above the threshold")
        return loaders

    def preprocessing(self, kept: Mapping[str, Any]) -> dict[str, Any]:
        """Describe how a text is split into words, and the words in the order of their numbers."""
        return {
            "text": "character references of HTML resolved, small letters",
            "word": WORD.pattern,
            "words": list(kept.get("vocabulary", ())),
            "number_of_the_first_word": 1,
            "number_of_an_unknown_word": 0,
            "classes": ["below the threshold", "above the threshold"],
        }


class SentimentClassifier(SequenceClassifier):
    """A classifier of texts on embedded words.

    Args:
        vocabulary_size: number of words of the data, the unknown word included.
        embedding_size: width of the embedding.
        **classifier: arguments of
            :class:`rnnorm.experiments.models.classifiers.SequenceClassifier`.
    """

    def __init__(
        self, vocabulary_size: int = 5001, embedding_size: int = 100, **classifier: Any
    ) -> None:
        super().__init__(input_size=embedding_size, num_classes=2, **classifier)
        self.embedding = nn.Embedding(vocabulary_size, embedding_size)

    def check_data(self, data: SentimentData) -> None:
        """Check that the data have as many words as the model.

        Raises:
            ValueError: if the data need another ``vocabulary_size``.
        """
        words = len(data.vocabulary)
        what = f"the {words} words of the training texts and the unknown word"
        self.expect_size("vocabulary_size", words + 1, what)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Compute the scores of the two classes.

        Args:
            x: numbers of words ``(T, B)``.
            lengths: words of each text ``(B,)`` if not all have ``T``.

        Returns:
            Scores ``(B, 2)``.
        """
        return super().forward(self.embedding(x), lengths)

    def export_inputs(self, steps: int, rows: int) -> dict[str, Any]:
        """Return whole texts."""
        return whole_sequences(torch.zeros(steps, rows, dtype=torch.int64))
