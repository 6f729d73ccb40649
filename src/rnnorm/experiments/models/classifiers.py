"""Classifiers of whole sequences, and of every step of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from rnnorm.diagnostics import plot_posteriors
from rnnorm.experiments.models.layers import initialise
from rnnorm.experiments.models.measures import cross_entropy
from rnnorm.experiments.models.recurrent_model import (
    RecurrentModel,
    side_by_side,
    whole_sequences,
)
from rnnorm.experiments.training import processes
from rnnorm.experiments.training.score import Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class SequenceClassifier(RecurrentModel):
    """Recurrent layers and a softmax on the last output, or on the mean of all outputs.

    A minibatch is ``(x, y)``, or ``(x, lengths, y)`` if sequences differ in length.

    Args:
        input_size: values of a time step.
        num_classes: number of classes.
        num_layers: number of layers.
        bidirectional: whether each layer also reads backwards.
        readout: ``"last"`` for each direction's last h of the topmost layer, ``"mean"`` for the
            mean of the outputs over the steps of the sequence.
        dropout: dropout of the input, between layers and before the classifier, never on recurrent
            connections (Zaremba et al. 2014).
        **layers: arguments of :class:`rnnorm.experiments.models.recurrent_model.RecurrentModel`.

    Attributes:
        score: the metric of the best checkpoint, the accuracy.

    Raises:
        ValueError: if a name is unknown.
    """

    score = Score("accuracy", "max")
    in_processes = True

    def __init__(
        self,
        input_size: int = 1,
        num_classes: int = 10,
        num_layers: int = 1,
        bidirectional: bool = False,
        readout: Literal["last", "mean"] = "last",
        dropout: float = 0.0,
        **layers: Any,
    ) -> None:
        super().__init__(**layers)
        self.rnn = self.make_layer(
            input_size,
            num_layers=num_layers,
            bidirectional=bidirectional,
            # torch.nn warns about dropout in a single layer
            dropout=dropout if num_layers > 1 else 0.0,
        )
        self.classifier = nn.Linear(self.rnn.hidden_size * (1 + bidirectional), num_classes)
        initialise(self.rnn, self.hparams["init"], self.classifier)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Compute the scores of the classes.

        Args:
            x: sequences ``(T, B, input_size)``.
            lengths: steps of each sequence ``(B,)`` if not all have ``T``.

        Returns:
            Scores ``(B, num_classes)``.
        """
        rate = self.hparams["dropout"]
        # an HMLSTM also returns its boundaries
        output, state, *_ = self.rnn(dropout(x, rate, self.training), lengths=lengths)
        if self.hparams["readout"] == "mean":
            steps = len(x) if lengths is None else lengths.to(output).unsqueeze(1)
            read = output.sum(0) / steps
        else:
            h_n = state[0] if isinstance(state, tuple) else state
            read = side_by_side(h_n[-1 - self.hparams["bidirectional"] :])
        scores: Tensor = self.classifier(dropout(read, rate, self.training))
        return scores

    def export_inputs(self, steps: int, rows: int) -> dict[str, Any]:
        """Return whole sequences."""
        return whole_sequences(torch.zeros(steps, rows, self.rnn.input_size))

    def statistics_step(self, batch: tuple[Tensor, ...]) -> None:
        """Run the model over a minibatch to collect its statistics."""
        x, *lengths, _ = batch
        weight = self.classifier.weight
        # symbols are integers and keep their type
        self(x.to(weight if x.is_floating_point() else weight.device), *lengths)

    def predict(self, name: str, batch: tuple[Tensor, ...]) -> Tensor:
        """Compute the scores of the classes ``(B, num_classes)``."""
        *inputs, _ = batch
        scores: Tensor = self(*inputs)
        return scores

    def training_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> Tensor:
        """Compute the cross-entropy of a minibatch."""
        y, scores = batch[-1], self.predict("train", batch)
        loss = cross_entropy(scores, y)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(y))
        self.log_score("train", (scores.argmax(1) == y).float())
        return loss * processes.loss_weight(len(y))

    def evaluate(self, name: str, batch: tuple[Tensor, ...]) -> None:
        """Log accuracy and cross-entropy of a minibatch."""
        y, scores = batch[-1], self.prediction(name, batch)
        self.log(f"{name}/loss", cross_entropy(scores, y), batch_size=len(y))
        self.log_score(name, (scores.argmax(1) == y).float())


class StepClassifier(RecurrentModel):
    """Recurrent layers and a softmax on the output of every step.

    A subclass captions the picture of posteriors (:meth:`example`).

    Args:
        input_size: values of a step.
        num_classes: number of classes.
        num_layers: number of layers.
        bidirectional: whether each layer also reads backwards.
        **layers: arguments of :class:`rnnorm.experiments.models.recurrent_model.RecurrentModel`.
    """

    def __init__(
        self,
        input_size: int,
        num_classes: int,
        num_layers: int,
        bidirectional: bool,
        **layers: Any,
    ) -> None:
        super().__init__(**layers)
        self.rnn = self.make_layer(input_size, num_layers=num_layers, bidirectional=bidirectional)
        self.classifier = nn.Linear(self.rnn.hidden_size * (1 + bidirectional), num_classes)
        initialise(self.rnn, self.hparams["init"], self.classifier)

    def forward(
        self, x: Tensor, state: Any = None, step: int = 0, lengths: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Compute the scores of the classes at every step.

        Args:
            x: features ``(T, B, input_size)``.
            state: states of the layers after the previous step, or None for the initial states.
            step: index of the first step in its sequence.
            lengths: steps of each row ``(B,)`` if not all have ``T``.

        Returns:
            Scores ``(T, B, num_classes)`` and the states after the last step.

        Raises:
            ValueError: if a state or a step is given to a bidirectional model.
        """
        output, state = self.outputs(x, state, step, lengths)
        return self.classifier(output), state

    def outputs(
        self, x: Tensor, state: Any = None, step: int = 0, lengths: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Compute the outputs and the states of the layers, as in :meth:`forward`."""
        if self.hparams["bidirectional"] and (state is not None or step):
            raise ValueError(
                "state and step must be None and 0 for a bidirectional model, which reads whole "
                f"sequences, got step {step}"
            )
        # an HMLSTM also returns its boundaries
        output, state, *_ = self.rnn(x, state, lengths=lengths, step=step)
        return output, state

    def statistics_step(self, batch: Any) -> None:
        """Run the model over a minibatch to collect its statistics."""
        self.outputs(batch.x.to(self.classifier.weight), lengths=batch.lengths)

    def examples(self, data: Any) -> Iterator[tuple[str, str, Callable[[Axes], None]]]:
        """Show the posteriors of two validation utterances; the model is in evaluation mode.

        Args:
            data: the loaded data.

        Yields:
            A title, a caption, and a function that draws the figure.
        """
        loader = data.loaders["val"]
        last = len(loader.utterances) - 1
        for i in sorted({0, last}):
            batch = loader.batch(0, [np.array([i])])
            scores, _ = self(batch.x.to(self.device))
            caption, line = self.example(data, batch, scores)
            posteriors = scores[:, 0].softmax(1).cpu()
            plot = partial(plot_posteriors, posteriors=posteriors, targets=line)
            yield f"Posteriors of {loader.utterances[i].name}", caption, plot

    def example(self, data: Any, batch: Any, scores: Tensor) -> tuple[str, Tensor | None]:
        """Return a caption for the posteriors of an utterance, and a class at each step to mark.

        Args:
            data: the loaded data.
            batch: a minibatch of this utterance alone.
            scores: scores of all its steps ``(T, 1, num_classes)``.
        """
        raise NotImplementedError
