"""Windows of a text: the symbols that a language model reads and those that it predicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnorm.experiments.data.batches import Resumable, fewest_rows
from rnnorm.experiments.data.text.corpora import Corpus, Dataset, Text, load_corpus
from rnnorm.experiments.data.text.vocabulary import KeepsVocabulary

# target behind the end of a shorter row
PADDING = -100


class Window(NamedTuple):
    """A minibatch of a text.

    Attributes:
        x: symbols ``(T, B)``.
        y: the symbol after each of them ``(T, B)``, ``PADDING`` in the padding.
        fresh: whether to start from the initial state, not from the state of the previous window.
        kept: whether the next window starts from this window's final state.
        step: index of the first frame in its sequence, for statistics per time step.
        lengths: predictions of each row ``(B,)`` if rows differ, else None.
    """

    x: Tensor
    y: Tensor
    fresh: bool
    kept: bool
    step: int
    lengths: Tensor | None = None

    @property
    def predictions(self) -> int:
        """Return the number of symbols that are predicted."""
        return self.y.numel() if self.lengths is None else int(self.lengths.sum())


def _window(columns: Tensor, **rest: int | bool) -> Window:
    """Make a window of symbols ``(T + 1, B)``."""
    columns = columns.long()
    return Window(columns[:-1].contiguous(), columns[1:].contiguous(), **rest)  # type: ignore[arg-type]


def _check(text: Text, needed: int, what: str) -> None:
    """Raise a ValueError if a text is shorter than needed."""
    if len(text.symbols) < needed:
        raise ValueError(
            f"{text.source} ends after {len(text.symbols)} symbols, {what} needs {needed}"
        )


class IndependentWindows(Resumable[Window]):
    """Windows that each start from the initial state, in random order or in the text's order.

    Args:
        text: the text.
        length: predictions of a window.
        batch_size: windows of a minibatch; the last one of an epoch may have fewer, but in
            training a last minibatch of a single window is left out.
        seed: seed of the order and of the crop, or None for the order of the text, in which the
            remaining symbols make a last, shorter window, so that no symbol is left out.
        crop: start each epoch at another place among the text's first ``length`` symbols.

    Raises:
        ValueError: if the text is shorter than a window, or a number is less than 1.
    """

    def __init__(
        self,
        text: Text,
        length: int,
        batch_size: int,
        seed: int | None = None,
        crop: bool = False,
    ) -> None:
        super().__init__(seed)
        _check(text, length + 1, f"a window of {length} predictions")
        self.symbols = text.symbols
        self.length, self.batch_size = length, batch_size
        self.crop = crop and seed is not None
        # every crop has the same number of windows, since an epoch's steps must not change
        spare = length - 1 if self.crop and len(self.symbols) >= 2 * length else 0
        self._largest_crop = spare
        self._whole = (len(self.symbols) - 1 - spare) // length
        self._rest = 0 if seed is not None else (len(self.symbols) - 1) % length

    def __len__(self) -> int:
        """Return the number of minibatches of an epoch."""
        return -(-self._windows // self.batch_size) + (self._rest > 0)

    def fewest_rows(self) -> int:
        """Return the windows of an epoch's smallest minibatch, in training."""
        return fewest_rows(self._windows, self.batch_size, len(self))

    @property
    def _windows(self) -> int:
        """Return how many whole windows an epoch has, without a last one that would be alone."""
        training = self.seed is not None and self._whole > 1 and self.batch_size > 1
        return self._whole - (training and self._whole % self.batch_size == 1)

    def draw(self) -> Tensor:
        """Draw the starts ``(windows,)`` of this epoch's windows, in its order."""
        starts = torch.arange(self._windows) * self.length
        if self.seed is None:
            return starts
        random = self.random()
        offset = int(random.randint(0, self._largest_crop + 1))
        return starts[torch.from_numpy(random.permutation(self._windows))] + offset

    def batch(self, number: int, drawn: Tensor) -> Window:
        """Return a minibatch of the windows with the drawn starts."""
        starts = drawn[number * self.batch_size : (number + 1) * self.batch_size]
        if not len(starts):
            rest = self.symbols[-self._rest - 1 :].unsqueeze(1)
            return _window(rest, fresh=True, kept=False, step=0)
        columns = self.symbols[starts + torch.arange(self.length + 1).unsqueeze(1)]
        return _window(columns, fresh=True, kept=False, step=0)


class CarriedWindows(Resumable[Window]):
    """Windows in the order of the text, which is cut into one long row for each minibatch row.

    Each row's state is carried from window to window, while ``step`` is 0 in each: the statistics
    of a step are those of its index in the window. The few symbols that do not fill the rows, and
    in training those that do not fill a last window, are left out.

    Args:
        text: the text.
        length: predictions of a window.
        batch_size: rows.
        whole: leave out a last, shorter window, as training does.

    Raises:
        ValueError: if the text is too short for a window of every row.
    """

    def __init__(self, text: Text, length: int, batch_size: int, whole: bool = True) -> None:
        super().__init__()
        least = (length if whole else 1) * batch_size + 1
        _check(text, least, f"a window of {length} predictions in {batch_size} rows")
        self.symbols = text.symbols
        # the attribute is not called batch_size, since others must not change it
        self.length, self._rows = length, batch_size
        self._columns = (len(self.symbols) - 1) // batch_size
        if whole:
            self._columns -= self._columns % length

    def __len__(self) -> int:
        """Return the number of windows of an epoch."""
        return -(-self._columns // self.length)

    def fewest_rows(self) -> int:
        """Return the number of rows, which every window has."""
        return self._rows

    def draw(self) -> Tensor:
        """Return the start of each row ``(B,)``."""
        return torch.arange(self._rows) * ((len(self.symbols) - 1) // self._rows)

    def batch(self, number: int, drawn: Tensor) -> Window:
        """Return a window of all rows."""
        start = number * self.length
        frames = torch.arange(start, min(start + self.length, self._columns) + 1)
        return _window(
            self.symbols[drawn + frames.unsqueeze(1)],
            fresh=number == 0,
            kept=number + 1 < len(self),
            step=0,
        )


class Stream(Resumable[Window]):
    """One long sequence in pieces, whose state and ``step`` are carried to the end of the text.

    Args:
        text: the text.
        piece: predictions held in memory at a time; results do not depend on this number.

    Raises:
        ValueError: if the text has fewer than two symbols.
    """

    def __init__(self, text: Text, piece: int = 500) -> None:
        super().__init__()
        _check(text, 2, "a prediction")
        self.symbols, self.piece = text.symbols, piece

    def __len__(self) -> int:
        """Return the number of pieces."""
        return -(-(len(self.symbols) - 1) // self.piece)

    def draw(self) -> None:
        """Draw nothing, since nothing is random."""

    def batch(self, number: int, drawn: None) -> Window:
        """Return a piece, as a minibatch of one row."""
        start = number * self.piece
        return _window(
            self.symbols[start : start + self.piece + 1].unsqueeze(1),
            fresh=number == 0,
            kept=number + 1 < len(self),
            step=start,
        )


class TextData(KeepsVocabulary):
    """A text in minibatches :class:`rnnorm.experiments.data.text.windows.Window`.

    A subclass cuts the text into windows (:meth:`cut`).

    Args:
        dataset: ``"ptb-char"``, ``"ptb-word"``, ``"text8"`` or ``"text"``, see
            :func:`rnnorm.experiments.data.text.corpora.load_corpus`.
        file: the file of ``"text"``, or another name for that of ``"text8"``.
        train_size: keep only this many symbols, or sentences, of the training text.
        eval_size: keep only this many of the validation text, and as many of the test text.
        **shared: arguments of :class:`rnnorm.experiments.data.loaded_data.LoadedData`.

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
        """Cut the three parts of a text into minibatches."""
        raise NotImplementedError

    def load(self) -> dict[str, Resumable[Window]]:
        """Read the text.

        Raises:
            ValueError: if a file is broken, incomplete or too short.
            FileNotFoundError: if ``data_dir`` lacks a file.
        """
        given = self.hparams
        corpus = load_corpus(given["dataset"], given["data_dir"], given["file"])
        self.vocabulary, self.source = corpus.vocabulary, corpus.train.source
        return self.cut(corpus)

    def preprocessing(self, kept: Mapping[str, Any]) -> dict[str, Any]:
        """Describe the symbols in the order of their numbers."""
        return {"dataset": self.hparams["dataset"], "symbols": list(kept.get("vocabulary", ()))}
