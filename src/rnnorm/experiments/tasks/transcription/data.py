"""Data of utterances with the words, characters or phones that were said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rnnorm.experiments.console import check_at_least
from rnnorm.experiments.data.batches import subsample
from rnnorm.experiments.data.kaldi.folder import Units, load_kaldi_text
from rnnorm.experiments.data.speech import spoken_digits, timit
from rnnorm.experiments.data.speech.batches import TranscriptBatches
from rnnorm.experiments.data.speech.filter_banks import (
    add_deltas,
    filter_banks_of,
    normalise,
    stack,
)
from rnnorm.experiments.data.speech.spoken_digits import load_digit_strings
from rnnorm.experiments.data.speech.timit import load_timit
from rnnorm.experiments.data.speech.utterances import Spoken, SpokenParts
from rnnorm.experiments.data.text.vocabulary import KeepsVocabulary, Vocabulary

SpokenDataset = Literal["digits", "timit", "kaldi"]
# samples of a second; the recordings behind a user's own features are unknown
_RATES = {"digits": spoken_digits.RATE, "timit": timit.RATE}


class SpokenData(KeepsVocabulary):
    """Utterances in minibatches ``TranscriptBatch``.

    A training utterance with fewer steps than its symbols need is left out, and named in a note. In
    validation and test such an utterance counts in the error but not in the loss, and so does one
    with a symbol that no training utterance has.

    Args:
        dataset: ``"digits"``, strings of spoken digits (``load_digit_strings``); ``"timit"``
            (``load_timit``); or ``"kaldi"``, the user's own features and words
            (``load_kaldi_text``).
        strings: number of training strings of ``"digits"``.
        speakers: speakers of ``"digits"``; None for all six without ``test_speakers``.
        test_speakers: speakers of the test strings of ``"digits"``; None for ``speakers``.
        units: symbols of ``"kaldi"``: ``"words"`` or ``"characters"``.
        stacked: frames that are stacked into one step.
        deltas: whether to add slopes and their slopes, which makes the features three times as
        many.
        normalised: whether to scale each utterance's features to mean 0 and variance 1.
        train_size: keep only this many training utterances, a fixed random choice.
        **shared: arguments of :class:`rnnorm.experiments.data.loaded_data.LoadedData`.

    Attributes:
        vocabulary: the symbols of the training utterances, once the data are loaded.
        num_features: values of a step, once the data are loaded.

    Raises:
        ValueError: if a name is unknown, an argument is for another data set, or a number is less
            than 1.
    """

    def __init__(
        self,
        dataset: SpokenDataset = "digits",
        strings: int = 2000,
        speakers: list[str] | None = None,
        test_speakers: list[str] | None = None,
        units: Units = "words",
        stacked: int = 3,
        deltas: bool = False,
        normalised: bool = True,
        train_size: int | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        check_at_least(1, strings=strings, stacked=stacked)
        if units != "words" and dataset != "kaldi":
            raise ValueError(f"units must be 'words' for {dataset}, got {units!r}")
        for name, who in (("speakers", speakers), ("test_speakers", test_speakers)):
            if who is not None and dataset != "digits":
                raise ValueError(f"{name} must be None for {dataset}, got {who}")
        self.num_features = 0

    def load(self) -> dict[str, TranscriptBatches]:
        """Read the utterances.

        Raises:
            ValueError: if a file is broken, or no training utterance can be aligned.
            FileNotFoundError: if a file is missing.
        """
        given, spoken = self.hparams, self._spoken()
        train = subsample(spoken.train, given["train_size"])
        self.notes = list(spoken.notes)
        self.vocabulary = Vocabulary(symbol for each in train for symbol in each.symbols)
        self.source = f"the training utterances of {given['dataset']}"
        self.num_features = spoken.num_features * given["stacked"] * (3 if given["deltas"] else 1)
        whole = self._batches("train", train)
        unfit = [u.name for i, u in enumerate(train) if not whole.alignable(i)]
        if len(unfit) == len(train):
            raise ValueError(f"no training utterance has as many steps as its symbols: {unfit[0]}")
        if unfit:
            self.notes.append(
                f"train: {len(unfit)} utterances left out, shorter than their symbols: "
                f"{', '.join(unfit[:10])}{', ...' if len(unfit) > 10 else ''}"
            )
            train = [u for i, u in enumerate(train) if whole.alignable(i)]
        loaders = {
            part: self._batches(part, some)
            for part, some in (("train", train), ("val", spoken.val), ("test", spoken.test))
        }
        for part, loader in loaders.items():
            count = len(loader.utterances)
            symbols = sum(len(u.symbols) for u in loader.utterances)
            note = (
                f"{part}: {count} utterances, {int(loader.lengths.sum())} steps, {symbols} symbols"
            )
            if without := sum(not loader.alignable(i) for i in range(count)):
                note += f"; {without} of them cannot be right, and have no loss"
            self.notes.append(note)
        return loaders

    def features(self, recording: object, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Compute the steps ``(T, F)`` of a recording, as in training.

        Args:
            recording: the file, for the error.
            samples: samples of one channel ``(N,)``, at :attr:`rate`.

        Raises:
            ValueError: if the recording is shorter than a frame.
        """
        return self._prepare(filter_banks_of(recording, samples, self.rate))

    @property
    def rate(self) -> int:
        """Return the number of samples of a second.

        Raises:
            ValueError: if the data set has features instead of recordings.
        """
        dataset = self.hparams["dataset"]
        if dataset not in _RATES:
            raise ValueError(f"the features of dataset {dataset!r} are not made of recordings here")
        return _RATES[dataset]

    def text(self, symbols: tuple[str, ...]) -> str:
        """Join symbols to a text."""
        return ("" if self.hparams["units"] == "characters" else " ").join(symbols)

    def _spoken(self) -> SpokenParts:
        given = self.hparams
        if given["dataset"] == "timit":
            return load_timit(given["data_dir"])
        if given["dataset"] == "kaldi":
            return load_kaldi_text(given["data_dir"], given["units"])
        apart = given["test_speakers"] or ()
        speakers = given["speakers"] or [s for s in spoken_digits.SPEAKERS if s not in apart]
        if not speakers:
            raise ValueError(f"test_speakers must leave one to train on, got all: {list(apart)}")
        return load_digit_strings(given["data_dir"], given["strings"], speakers, apart)

    def _batches(self, part: str, utterances: Sequence[Spoken]) -> TranscriptBatches:
        rows, seed = self.rows_and_seed(part)
        stacked = self.hparams["stacked"]
        return TranscriptBatches(utterances, self.vocabulary, rows, seed, stacked, self._prepare)

    def _prepare(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        given = self.hparams
        features = add_deltas(features) if given["deltas"] else features
        return stack(normalise(features) if given["normalised"] else features, given["stacked"])
