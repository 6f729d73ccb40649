"""Data of utterances with the tied state of every frame, from a forced alignment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rnnorm.experiments.data.batches import subsample
from rnnorm.experiments.data.kaldi.folder import load_kaldi
from rnnorm.experiments.data.loaded_data import LoadedData
from rnnorm.experiments.data.speech.batches import FrameBatches
from rnnorm.experiments.data.speech.filter_banks import add_deltas, normalise
from rnnorm.experiments.data.speech.spoken_digits import Split, load_fsdd
from rnnorm.experiments.data.speech.utterances import Speech


class FrameData(LoadedData):
    """Utterances in minibatches :class:`rnnorm.experiments.data.speech.batches.FrameBatch`.

    Args:
        dataset: ``"fsdd"``, spoken digits (``load_fsdd``), or
            ``"kaldi"``, the user's own features (``load_kaldi``).
        alignments: folder of the alignments of ``"fsdd"``, relative to ``data_dir``.
        split: split of ``"fsdd"``: by ``"speaker"`` or ``"random"``.
        speaker: speaker to train on, if ``"fsdd"`` is split by speaker.
        deltas: whether to add slopes and their slopes, which makes the features three times as
        many.
        normalised: whether to scale each utterance's features to mean 0 and variance 1.
        max_length: most frames of a training utterance; longer ones are left out. None for no
        limit.
        train_size: keep only this many training utterances, a fixed random choice.
        **shared: arguments of :class:`rnnorm.experiments.data.loaded_data.LoadedData`; ``data_dir``
            is the folder that these functions read.

    Attributes:
        num_features: values of a frame, once the data are loaded.
        num_targets: number of states, once the data are loaded.

    Raises:
        ValueError: if a name is unknown, or a number is less than 1.
    """

    def __init__(
        self,
        dataset: Literal["fsdd", "kaldi"] = "fsdd",
        alignments: str = "kaldi/digits/tri1",
        split: Split = "speaker",
        speaker: str = "nicolas",
        deltas: bool = True,
        normalised: bool = True,
        max_length: int | None = 1300,
        train_size: int | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.num_features = self.num_targets = 0

    def preprocessing(self, kept: Mapping[str, Any]) -> dict[str, Any]:
        """Describe how the features of an utterance are made, in order."""
        given = self.hparams
        features = "log energy and 40 log mel filter banks of Kaldi, 25 ms every 10 ms, no dither"
        return {
            "features": features if given["dataset"] == "fsdd" else "those of the data set",
            "add_deltas_and_their_deltas": given["deltas"],
            "mean_0_and_variance_1_of_each_utterance": given["normalised"],
        }

    def load(self) -> dict[str, FrameBatches]:
        """Read alignments and lengths, and compute the features of recordings.

        Raises:
            ValueError: if a file is broken, or no training utterance is left.
            FileNotFoundError: if a file is missing.
        """
        given = self.hparams
        speech = self._speech()
        train, most = list(speech.train), given["max_length"]
        if most is not None:
            train = [u for u in train if len(u.targets) <= most]
        dropped = len(speech.train) - len(train)
        if not train:
            raise ValueError(
                f"max_length must leave a training utterance: all {dropped} are longer than {most}"
            )
        self.notes = list(speech.notes)
        if dropped:
            self.notes.append(f"training: {dropped} utterances of more than {most} frames left out")
        train = subsample(train, given["train_size"])
        self.num_features = speech.num_features * (3 if given["deltas"] else 1)
        self.num_targets = speech.num_targets
        loaders = {
            part: FrameBatches(utterances, *self.rows_and_seed(part), self._prepare)
            for part, utterances in (("train", train), ("val", speech.val), ("test", speech.test))
        }
        for name, loader in loaders.items():
            frames = sum(len(u.targets) for u in loader.utterances)
            self.notes.append(f"{name}: {len(loader.utterances)} utterances, {frames} frames")
        return loaders

    def _speech(self) -> Speech:
        given = self.hparams
        if given["dataset"] == "kaldi":
            return load_kaldi(given["data_dir"])
        return load_fsdd(*(given[n] for n in ("data_dir", "alignments", "split", "speaker")))

    def _prepare(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        features = add_deltas(features) if self.hparams["deltas"] else features
        return normalise(features) if self.hparams["normalised"] else features
