"""Recurrent layers that classify every frame of speech."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rnnorm.diagnostics import plot_posteriors
from rnnorm.experiments.data.speech.frame_batches import FrameBatch, FrameBatches
from rnnorm.experiments.models.layers import initialise
from rnnorm.experiments.models.recurrent_model import RecurrentModel
from rnnorm.experiments.tasks.frames.data import FrameData
from rnnorm.experiments.training import processes
from rnnorm.experiments.training.score import Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class FrameClassifier(RecurrentModel):
    """Recurrent layers and a softmax on the output of every frame.

    Args:
        input_size: values of a frame.
        num_classes: states to tell apart.
        num_layers: layers.
        bidirectional: whether each layer also reads backwards.
        reduction: the loss of a minibatch is the ``"sum"`` or the ``"mean"`` over its frames.
        **layers: of :class:`rnnorm.experiments.models.recurrent_model.RecurrentModel`.

    Attributes:
        score: the metric of the best checkpoint, the frame error; lower is better.

    Raises:
        ValueError: a name is unknown.
    """

    score = Score("frame_error", "min")
    in_processes = True

    def __init__(
        self,
        input_size: int = 123,
        num_classes: int = 3546,
        num_layers: int = 5,
        bidirectional: bool = True,
        reduction: Literal["sum", "mean"] = "sum",
        **layers: Any,
    ) -> None:
        super().__init__(**layers)
        if reduction not in ("sum", "mean"):
            raise ValueError(f"reduction must be 'sum' or 'mean', got {reduction!r}")
        self.rnn = self.make_layer(input_size, num_layers=num_layers, bidirectional=bidirectional)
        self.classifier = nn.Linear(self.rnn.hidden_size * (1 + bidirectional), num_classes)
        initialise(self.rnn, self.hparams["init"], self.classifier)

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
        # an HMLSTM tells its boundaries too
        output, state, *_ = self.rnn(x, state, lengths=lengths, step=step)
        return output, state

    def training_step(self, batch: FrameBatch, batch_idx: int) -> Tensor:
        """Cross-entropy of a minibatch."""
        loss, frames = self.evaluate("train", batch)
        if self.hparams["reduction"] == "sum":
            return loss * frames * processes.count()
        return loss * processes.share(frames)

    def statistics_step(self, batch: FrameBatch) -> None:
        """Run over a minibatch for its statistics."""
        self._outputs(batch.x.to(self.classifier.weight), lengths=batch.lengths)

    def evaluate(self, name: str, batch: FrameBatch) -> tuple[Tensor, int]:
        """Log and return the mean cross-entropy of a minibatch's frames, and how many they are."""
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
