"""A recurrent model that classifies every frame of speech."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from rnnorm.experiments.data.speech.batches import FrameBatch
from rnnorm.experiments.models.classifiers import StepClassifier
from rnnorm.experiments.models.measures import cross_entropy
from rnnorm.experiments.models.recurrent_model import stream
from rnnorm.experiments.tasks.frames.data import FrameData
from rnnorm.experiments.training import processes
from rnnorm.experiments.training.score import Score


class FrameClassifier(StepClassifier):
    """Recurrent layers and a softmax on the output of every frame.

    Args:
        input_size: values of a frame.
        num_classes: number of states.
        num_layers: number of layers.
        bidirectional: whether each layer also reads backwards.
        reduction: the loss of a minibatch is the ``"sum"`` or the ``"mean"`` over its frames.
        **layers: arguments of :class:`rnnorm.experiments.models.recurrent_model.RecurrentModel`.

    Attributes:
        score: the metric of the best checkpoint, the frame error; lower is better.

    Raises:
        ValueError: if a name is unknown.
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
        super().__init__(input_size, num_classes, num_layers, bidirectional, **layers)

    def check_data(self, data: FrameData) -> None:
        """Check that the features and states fit the model.

        Raises:
            ValueError: if the data need another ``input_size`` or more classes.
        """
        what = f"the features of a frame{' with deltas' if data.hparams['deltas'] else ''}"
        self.expect_size("input_size", data.num_features, what)
        if (given := self.hparams["num_classes"]) < data.num_targets:
            raise ValueError(
                f"model.init_args.num_classes must be at least the {data.num_targets} states of "
                f"the alignments, got {given}"
            )

    def export_inputs(self, steps: int, rows: int) -> dict[str, Any]:
        """Return frames with the states before them, or whole utterances in both directions."""
        return stream(self, torch.zeros(steps, rows, self.rnn.input_size))

    def training_step(self, batch: FrameBatch, batch_idx: int) -> Tensor:
        """Compute the cross-entropy of a minibatch."""
        loss, frames = self.evaluate("train", batch)
        if self.hparams["reduction"] == "sum":
            return loss * frames * processes.count()
        return loss * processes.loss_weight(frames)

    def predict(self, name: str, batch: FrameBatch) -> Tensor:
        """Compute the scores of the states at all frames ``(N, num_classes)`` of a minibatch."""
        output, _ = self.outputs(batch.x, lengths=batch.lengths)
        scores: Tensor = self.classifier(output[batch.inside])
        return scores

    def evaluate(self, name: str, batch: FrameBatch) -> tuple[Tensor, int]:
        """Log and return the mean cross-entropy of a minibatch's frames, and their number."""
        inside = batch.inside
        scores, targets = self.prediction(name, batch), batch.y[inside]
        loss, frames = cross_entropy(scores, targets), len(targets)
        self.log(f"{name}/loss", loss, prog_bar=name == "train", batch_size=frames)
        wrong = inside.float()
        wrong[inside] = (scores.argmax(1) != targets).float()
        self.log_score(name, wrong.sum(0), inside.sum(0))
        return loss, frames

    def example(self, data: FrameData, batch: FrameBatch, scores: Tensor) -> tuple[str, Tensor]:
        """Return a caption with the share of wrong frames, and the aligned states."""
        targets = batch.y[:, 0]
        wrong = (scores[:, 0].argmax(1).cpu() != targets).float().mean()
        caption = (
            "Posterior of the states that matter against the frame; the line is the aligned "
            f"state. {float(wrong):.0%} of {len(targets)} frames are classified wrongly."
        )
        return caption, targets
