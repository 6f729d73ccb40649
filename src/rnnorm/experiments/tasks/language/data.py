"""Data of a text, in minibatches of windows or as one stream."""

from __future__ import annotations

from typing import Any, Literal

from rnnorm.experiments.console import check_at_least
from rnnorm.experiments.data.batches import Resumable
from rnnorm.experiments.data.text.corpora import Corpus, Text
from rnnorm.experiments.data.text.windows import (
    CarriedWindows,
    IndependentWindows,
    Stream,
    TextData,
    Window,
)


class LanguageData(TextData):
    """A text in minibatches :class:`rnnorm.experiments.data.text.windows.Window`.

    Args:
        windows: ``"independent"`` windows in random order, each from the initial state, or
            ``"carried"`` windows in the order of the text, with the state of the previous window.
        length: predictions of a window.
        crop: whether to start each epoch of independent windows at another random place.
        val_by: validate by ``"windows"`` as in training, or as one ``"stream"`` whose state and
            time step are carried from the first symbol to the last.
        test_by: test by ``"windows"`` or as one ``"stream"``.
        eval_length: predictions of a window in validation and test; ``length`` by default.
        **shared: arguments of :class:`rnnorm.experiments.data.text.windows.TextData`.

    Raises:
        ValueError: if a name is unknown, a number is less than 1, or ``crop`` is given with carried
            windows.
    """

    def __init__(
        self,
        windows: Literal["independent", "carried"] = "independent",
        length: int = 100,
        crop: bool = False,
        val_by: Literal["windows", "stream"] = "windows",
        test_by: Literal["windows", "stream"] = "stream",
        eval_length: int | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        if crop and windows == "carried":
            raise ValueError("crop must be False with windows='carried', which read all in order")
        self._test: Text | None = None

    def cut(self, corpus: Corpus) -> dict[str, Resumable[Window]]:
        """Cut the three parts into windows."""
        given = self.hparams
        loaders = {"train": self._training(_first(corpus.train, given["train_size"]))}
        for name, whole in (("val", corpus.val), ("test", corpus.test)):
            text = _first(whole, given["eval_size"])
            loaders[name] = self._evaluation(text, given[f"{name}_by"])
        self._test = text
        return loaders

    def _training(self, text: Text) -> Resumable[Window]:
        given = self.hparams
        length, rows = given["length"], given["batch_size"]
        if given["windows"] == "carried":
            return CarriedWindows(text, length, rows)
        return IndependentWindows(text, length, rows, given["seed"], given["crop"])

    def _evaluation(self, text: Text, by: str) -> Resumable[Window]:
        given = self.hparams
        if by == "stream":
            return Stream(text)
        length, rows = given["eval_length"] or given["length"], given["eval_batch_size"]
        if given["windows"] == "carried":
            return CarriedWindows(text, length, rows, whole=False)
        return IndependentWindows(text, length, rows)

    def test_windows(self, length: int) -> IndependentWindows:
        """Cut the test text into windows that each start from the initial state.

        Args:
            length: predictions of a window.

        Raises:
            ValueError: if the text is shorter than a window.
        """
        check_at_least(1, lengths=length)
        assert self._test is not None
        return IndependentWindows(self._test, length, self.hparams["eval_batch_size"])


def _first(text: Text, size: int | None) -> Text:
    return Text(text.symbols[:size], text.source)
