"""Language modelling of sentences: predict each next symbol, up to the end of the sentence."""

from __future__ import annotations

from typing import Any

from rnnorm.experiments.data.batches import Resumable
from rnnorm.experiments.data.text.corpora import ENDS, Corpus, Dataset
from rnnorm.experiments.data.text.sentences import Sentences, fold, split_sentences
from rnnorm.experiments.data.text.windows import TextData, Window


class SentenceData(TextData):
    """Sentences or lines of a text in minibatches ``Window``.

    The model is :class:`rnnorm.experiments.tasks.language.model.LanguageModel`. Validation and test
    read one sentence a row, even if ``folded``.

    Args:
        dataset: ``"ptb-char"``, ``"ptb-word"`` or ``"text"``, see
            :func:`rnnorm.experiments.data.text.corpora.load_corpus`.
        folded: whether to train on sequences of two sentences, see ``fold``.
        **shared: arguments of :class:`rnnorm.experiments.data.text.windows.TextData`.

    Raises:
        ValueError: if the texts of ``dataset`` have no end symbol, or a size is less than 1.
    """

    def __init__(
        self,
        dataset: Dataset = "ptb-char",
        folded: bool = False,
        **shared: Any,
    ) -> None:
        super().__init__(dataset, **shared)
        if dataset not in ENDS:
            raise ValueError(f"dataset must be one of {', '.join(ENDS)}, got {dataset!r}")

    def cut(self, corpus: Corpus) -> dict[str, Resumable[Window]]:
        """Split the three parts into sentences.

        Raises:
            ValueError: if a part has no sentence.
        """
        given = self.hparams
        end = corpus.vocabulary.number(ENDS[given["dataset"]])
        train = split_sentences(corpus.train, end)[: given["train_size"]]
        parts = {"train": fold(train) if given["folded"] else train}
        for part, text in (("val", corpus.val), ("test", corpus.test)):
            parts[part] = split_sentences(text, end)[: given["eval_size"]]
        return {part: Sentences(some, *self.rows_and_seed(part)) for part, some in parts.items()}
