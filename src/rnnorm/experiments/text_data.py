"""What tasks on texts share: their loaders, and a vocabulary that a checkpoint keeps."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as lightning

from rnnorm.experiments.corpora import Corpus, load_corpus
from rnnorm.experiments.resumable import Resumable
from rnnorm.experiments.vocabulary import Vocabulary
from rnnorm.experiments.windows import Window


class TextData(lightning.LightningDataModule):
    """A text in minibatches :class:`rnnorm.experiments.windows.Window`.

    A subclass keeps ``dataset``, ``data_dir`` and ``file``
    (:func:`rnnorm.experiments.corpora.load_corpus`) in its hyper-parameters and says how the text
    is cut (:meth:`cut`).

    Attributes:
        loaders: minibatches of ``"train"``, ``"val"`` and ``"test"``, once the data are loaded.
        vocabulary: the symbols, once the data are loaded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loaders: dict[str, Resumable[Window]] = {}
        self.vocabulary = Vocabulary(())
        self._source = ""

    def check_sizes(self) -> None:
        """Refuse a length or a size below 1.

        Raises:
            ValueError: there is one.
        """
        for name, value in self.hparams.items():
            if name.endswith(("length", "size")) and value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    def cut(self, corpus: Corpus) -> dict[str, Resumable[Window]]:
        """Minibatches of the three parts of a text."""
        raise NotImplementedError

    def setup(self, stage: str | None = None) -> None:
        """Load the text, once.

        Raises:
            ValueError: a file is not the whole text that it should be, or too short.
            FileNotFoundError: ``data_dir`` lacks a file.
        """
        if self.loaders:
            return
        given = self.hparams
        corpus = load_corpus(given["dataset"], given["data_dir"], given["file"])
        self.vocabulary, self._source = corpus.vocabulary, corpus.train.source
        self.loaders = self.cut(corpus)

    def train_dataloader(self) -> Resumable[Window]:
        """Training minibatches, in an order that is a function of the seed and the epoch.

        Raises:
            ValueError: there is more than one device, and each would see all of the data.
        """
        if self.trainer is not None and self.trainer.world_size > 1:
            raise ValueError(f"trainer.devices must be 1, got {self.trainer.world_size}")
        return self.loaders["train"]

    def val_dataloader(self) -> Resumable[Window]:
        """Validation minibatches."""
        return self.loaders["val"]

    def test_dataloader(self) -> Resumable[Window]:
        """Test minibatches."""
        return self.loaders["test"]

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the text: its vocabulary."""
        return {"vocabulary": list(self.vocabulary.symbols)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse a checkpoint whose symbols had other numbers.

        Raises:
            ValueError: the vocabularies differ.
        """
        if "vocabulary" in state_dict:
            self.vocabulary.check_same(state_dict["vocabulary"], self._source)
