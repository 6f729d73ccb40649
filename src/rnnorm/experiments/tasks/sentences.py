"""Language modelling of sentences: predict each next symbol, up to the end of the sentence."""

from __future__ import annotations

from rnnorm.experiments.data.resumable import Resumable
from rnnorm.experiments.data.text.corpora import ENDS, Corpus, Dataset
from rnnorm.experiments.data.text.folding import fold
from rnnorm.experiments.data.text.loaded_text import TextData
from rnnorm.experiments.data.text.sentences import Sentences, split_sentences
from rnnorm.experiments.data.text.windows import Window


class SentenceData(TextData):
    """Sentences or lines of a text in minibatches ``Window``.

    The model is :class:`rnnorm.experiments.tasks.language.LanguageModel`. Validation and test read
    one sentence a row, folded or not.

    Args:
        dataset: ``"ptb-char"``, ``"ptb-word"`` or ``"text"``, see
            :func:`rnnorm.experiments.data.text.corpora.load_corpus`.
        data_dir: folder of the text's files.
        file: the file of ``"text"``.
        folded: train on sequences of two sentences, see ``fold``.
        batch_size: rows of a training minibatch.
        eval_batch_size: rows of a minibatch in validation and test.
        train_size: keep only this many training sentences.
        eval_size: keep only this many sentences for validation and as many for test.
        seed: seed of the order of the training sentences, a new one each epoch.

    Raises:
        ValueError: the texts of ``dataset`` have no end symbol, or a size is less than 1.
    """

    def __init__(
        self,
        dataset: Dataset = "ptb-char",
        data_dir: str | None = None,
        file: str | None = None,
        folded: bool = False,
        batch_size: int = 64,
        eval_batch_size: int = 64,
        train_size: int | None = None,
        eval_size: int | None = None,
        seed: int = 1,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        if dataset not in ENDS:
            raise ValueError(f"dataset must be one of {', '.join(ENDS)}, got {dataset!r}")
        self.check_sizes()

    def cut(self, corpus: Corpus) -> dict[str, Resumable[Window]]:
        """Sentences of the three parts.

        Raises:
            ValueError: a part has no sentence.
        """
        given = self.hparams
        end = corpus.vocabulary.number(ENDS[given["dataset"]])
        train = split_sentences(corpus.train, end)[: given["train_size"]]
        train = fold(train) if given["folded"] else train
        loaders: dict[str, Resumable[Window]] = {
            "train": Sentences(train, given["batch_size"], given["seed"])
        }
        for name, text in (("val", corpus.val), ("test", corpus.test)):
            sentences = split_sentences(text, end)[: given["eval_size"]]
            loaders[name] = Sentences(sentences, given["eval_batch_size"])
        return loaders
