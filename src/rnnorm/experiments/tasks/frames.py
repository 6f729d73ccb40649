"""Frame classification of speech: the tied state of every frame, given by a forced alignment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import lightning.pytorch as lightning
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rnnorm.diagnostics import plot_posteriors
from rnnorm.experiments.data.loaded_data import LoadedData
from rnnorm.experiments.data.speech.filter_banks import add_deltas, normalise
from rnnorm.experiments.data.speech.frame_batches import FrameBatch, FrameBatches
from rnnorm.experiments.data.speech.fsdd import Split, load_fsdd
from rnnorm.experiments.data.speech.kaldi.folder import load_kaldi
from rnnorm.experiments.data.speech.utterances import Speech
from rnnorm.experiments.models.layers import initialise, recurrent
from rnnorm.experiments.training.score import Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class FrameData(LoadedData):
    """Utterances in minibatches :class:`rnnorm.experiments.data.speech.frame_batches.FrameBatch`.

    Args:
        dataset: ``"fsdd"``, spoken digits (``load_fsdd``), or
            ``"kaldi"``, features of one's own (``load_kaldi``).
        data_dir: the folder that these functions read.
        alignments: of ``"fsdd"``: the folder of the alignments, relative to ``data_dir``.
        split: of ``"fsdd"``: by ``"speaker"`` or ``"random"``.
        speaker: of ``"fsdd"``: the one to train on, split by speaker.
        deltas: add slopes and their slopes to the features, which are then thrice as many.
        normalised: give each utterance's features mean 0 and variance 1, deltas included.
        max_length: leave longer utterances out of training, None for none.
        batch_size: rows of a training minibatch.
        eval_batch_size: rows of a minibatch in validation and test.
        train_size: keep only this many training utterances.
        seed: seed of the order of the training utterances, a new one each epoch.

    Attributes:
        num_features: values of a frame, once the data are loaded.
        num_targets: how many states there are, once the data are loaded.

    Raises:
        ValueError: an argument is none of these, or less than 1.
    """

    def __init__(
        self,
        dataset: Literal["fsdd", "kaldi"] = "fsdd",
        data_dir: str | None = None,
        alignments: str = "kaldi/digits/tri1",
        split: Split = "speaker",
        speaker: str = "nicolas",
        deltas: bool = True,
        normalised: bool = True,
        max_length: int | None = 1300,
        batch_size: int = 24,
        eval_batch_size: int = 24,
        train_size: int | None = None,
        seed: int = 1,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        for name, value, known in (
            ("dataset", dataset, ("fsdd", "kaldi")),
            ("split", split, ("speaker", "random")),
        ):
            if value not in known:
                raise ValueError(f"{name} must be {' or '.join(map(repr, known))}, got {value!r}")
        self.check_sizes()
        self.num_features = self.num_targets = 0

    def load(self) -> dict[str, FrameBatches]:
        """Read alignments and lengths, and the features too if they come from recordings.

        Raises:
            ValueError: a file is broken, or no training utterance is left.
            FileNotFoundError: a file is missing.
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
        train = train[: given["train_size"]]
        self.num_features = speech.num_features * (3 if given["deltas"] else 1)
        self.num_targets = speech.num_targets
        prepare, rows = self._prepare, given["eval_batch_size"]
        loaders = {
            "train": FrameBatches(train, given["batch_size"], given["seed"], prepare),
            "val": FrameBatches(speech.val, rows, prepare=prepare),
            "test": FrameBatches(speech.test, rows, prepare=prepare),
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


class FrameClassifier(lightning.LightningModule):
    """Recurrent layers and a softmax on the output of every frame.

    Args:
        input_size: values of a frame.
        num_classes: states to tell apart.
        cell: ``"LSTM"``, ``"GRU"`` or ``"RNN"``.
        norm: what is normalised: None, ``"batch"``, ``"layer"``, or a preset's name.
        norm_options: fields of :class:`rnnorm.BatchNorm` or :class:`rnnorm.LayerNorm` to change.
        hidden_size: units of a layer, in each direction.
        num_layers: layers.
        bidirectional: whether each layer also reads backwards.
        reduction: the loss of a minibatch is the ``"sum"`` or the ``"mean"`` over its frames.
        init: name of the recipe in :mod:`rnnorm.init` without its underscore, with zero biases, or
            None for those of ``torch.nn``.
        initial_noise: standard deviation of the Gaussian noise on h_0 in training.

    Attributes:
        score: the metric of the best checkpoint, the frame error; lower is better.

    Raises:
        ValueError: a name is unknown.
    """

    score = Score("frame_error", "min")

    def __init__(
        self,
        input_size: int = 123,
        num_classes: int = 3546,
        cell: Literal["LSTM", "GRU", "RNN"] = "LSTM",
        norm: str | None = None,
        norm_options: dict[str, Any] | None = None,
        hidden_size: int = 250,
        num_layers: int = 5,
        bidirectional: bool = True,
        reduction: Literal["sum", "mean"] = "sum",
        init: str | None = "laurent2015",
        initial_noise: float = 0.0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        if reduction not in ("sum", "mean"):
            raise ValueError(f"reduction must be 'sum' or 'mean', got {reduction!r}")
        self.rnn = recurrent(
            cell,
            input_size,
            hidden_size,
            norm,
            norm_options,
            num_layers=num_layers,
            bidirectional=bidirectional,
            initial_noise=initial_noise,
        )
        self.classifier = nn.Linear(hidden_size * (1 + bidirectional), num_classes)
        if init is not None:
            initialise(self.rnn, init, self.classifier)

    def check_data(self, data: FrameData) -> None:
        """See whether the features and states fit the model.

        Raises:
            ValueError: they do not.
        """
        given = self.hparams
        if given["input_size"] != data.num_features:
            raise ValueError(
                f"model.init_args.input_size must be the {data.num_features} features of a frame"
                f"{' with deltas' if data.hparams['deltas'] else ''}, got {given['input_size']}"
            )
        if given["num_classes"] < data.num_targets:
            raise ValueError(
                f"model.init_args.num_classes must be at least the {data.num_targets} states of "
                f"the alignments, got {given['num_classes']}"
            )

    def forward(
        self, x: Tensor, state: Any = None, step: int = 0, lengths: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Scores of the states of every frame.

        Args:
            x: features ``(T, B, input_size)``.
            state: states of the layers after the frame before, None for the initial ones.
            step: index of the first frame in its utterance.
            lengths: frames of each row ``(B,)`` if not all have ``T``.

        Returns:
            scores ``(T, B, num_classes)`` and the states after the last frame.

        Raises:
            ValueError: a bidirectional model is to go on from a state or a step.
        """
        output, state = self._outputs(x, state, step, lengths)
        return self.classifier(output), state

    def _outputs(
        self, x: Tensor, state: Any = None, step: int = 0, lengths: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        if self.hparams["bidirectional"] and (state is not None or step):
            raise ValueError(
                "state and step must be None and 0 for a bidirectional model, which reads whole "
                f"utterances, got step {step}"
            )
        output, state = self.rnn(x, state, lengths=lengths, step=step)
        return output, state

    def training_step(self, batch: FrameBatch, batch_idx: int) -> Tensor:
        """Cross-entropy of a minibatch."""
        loss, frames = self._measure("train", batch)
        return loss * frames if self.hparams["reduction"] == "sum" else loss

    def validation_step(self, batch: FrameBatch, batch_idx: int) -> None:
        """Cross-entropy and error over all frames of the validation set."""
        self._measure("val", batch)

    def test_step(self, batch: FrameBatch, batch_idx: int) -> None:
        """Cross-entropy and error over all frames of the test set."""
        self._measure("test", batch)

    def statistics_step(self, batch: FrameBatch) -> None:
        """Run over a minibatch for its statistics."""
        self._outputs(batch.x.to(self.device), lengths=batch.lengths)

    def _measure(self, name: str, batch: FrameBatch) -> tuple[Tensor, int]:
        """Mean cross-entropy of a minibatch's frames in nats, and how many they are."""
        output, _ = self._outputs(batch.x, lengths=batch.lengths)
        inside = batch.inside
        scores, targets = self.classifier(output[inside]), batch.y[inside]
        loss, frames = cross_entropy(scores, targets), len(targets)
        error = (scores.argmax(1) != targets).float().mean()
        # lightning's mean over minibatches is weighted with their frames
        self.log(f"{name}/loss", loss, prog_bar=name == "train", batch_size=frames)
        self.log(f"{name}/frame_error", error, prog_bar=name != "train", batch_size=frames)
        return loss, frames

    def examples(self, data: FrameData) -> Iterator[tuple[str, str, Callable[[Axes], None]]]:
        """Posteriors of two validation utterances, in evaluation.

        Args:
            data: the data, loaded.

        Yields:
            A title, a caption, and what draws the figure.
        """
        loader = data.loaders["val"]
        assert isinstance(loader, FrameBatches)
        training, last = self.training, len(loader.utterances) - 1
        for utterance in loader.utterances[:: max(1, last)]:
            (batch,) = FrameBatches([utterance], 1, prepare=loader.prepare)
            self.eval()
            with torch.no_grad():
                scores, _ = self(batch.x.to(self.device))
            self.train(training)
            posteriors, targets = scores[:, 0].softmax(1).cpu(), batch.y[:, 0]
            wrong = (posteriors.argmax(1) != targets).float().mean()
            caption = (
                "Posterior of the states that matter against the frame; the line is the aligned "
                f"state. {float(wrong):.0%} of {len(targets)} frames are classified wrongly."
            )
            plot = partial(plot_posteriors, posteriors=posteriors, targets=targets)
            yield f"Posteriors of {utterance.name}", caption, plot
