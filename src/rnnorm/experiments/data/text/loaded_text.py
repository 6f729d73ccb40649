"""What tasks on texts share: their loaders and their vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rnnorm.experiments.data.resumable import Resumable
from rnnorm.experiments.data.text.corpora import Corpus, Dataset, load_corpus
from rnnorm.experiments.data.text.keeps_vocabulary import KeepsVocabulary
from rnnorm.experiments.data.text.windows import Window


class TextData(KeepsVocabulary):
    """A text in minibatches :class:`rnnorm.experiments.data.text.windows.Window`.

    A subclass says how the text is cut (:meth:`cut`).

    Args:
        dataset: ``"ptb-char"``, ``"ptb-word"``, ``"text8"`` or ``"text"``, see
            :func:`rnnorm.experiments.data.text.corpora.load_corpus`.
        file: the file of ``"text"``, or another name for that of ``"text8"``.
        train_size: keep only this many symbols, or sentences, of the training text.
        eval_size: the same for the validation and for the test text.
        **shared: of :class:`rnnorm.experiments.data.loaded_data.LoadedData`.

    Attributes:
        vocabulary: the symbols, once the data are loaded.
    """

    def __init__(
        self,
        dataset: Dataset = "ptb-char",
        file: str | None = None,
        train_size: int | None = None,
        eval_size: int | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)

    def cut(self, corpus: Corpus) -> dict[str, Resumable[Window]]:
        """Minibatches of the three parts of a text."""
        raise NotImplementedError

    def load(self) -> dict[str, Resumable[Window]]:
        """Read the text.

        Raises:
            ValueError: a file is not the whole text that it should be, or too short.
            FileNotFoundError: ``data_dir`` lacks a file.
        """
        given = self.hparams
        corpus = load_corpus(given["dataset"], given["data_dir"], given["file"])
        self.vocabulary, self.source = corpus.vocabulary, corpus.train.source
        return self.cut(corpus)

    def preprocessing(self, kept: Mapping[str, Any]) -> dict[str, Any]:
        """The symbols, in the order of their numbers."""
        return {"dataset": self.hparams["dataset"], "symbols": list(kept.get("vocabulary", ()))}
