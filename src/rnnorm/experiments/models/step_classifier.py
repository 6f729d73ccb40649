"""Classes at every step of a sequence of features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from rnnorm.diagnostics import plot_posteriors
from rnnorm.experiments.models.layers import initialise
from rnnorm.experiments.models.recurrent_model import RecurrentModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class StepClassifier(RecurrentModel):
    """Recurrent layers and a softmax on the output of every step.

    A subclass says what a picture of posteriors shows (:meth:`example`).

    Args:
        input_size: values of a step.
        num_classes: classes to tell apart.
        num_layers: layers.
        bidirectional: whether each layer also reads backwards.
        **layers: of :class:`rnnorm.experiments.models.recurrent_model.RecurrentModel`.
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
        """Scores of the classes at every step.

        Args:
            x: features ``(T, B, input_size)``.
            state: states of the layers after the step before, None for the initial ones.
            step: index of the first step in its sequence.
            lengths: steps of each row ``(B,)`` if not all have ``T``.

        Returns:
            scores ``(T, B, num_classes)`` and the states after the last step.

        Raises:
            ValueError: a bidirectional model is to go on from a state or a step.
        """
        output, state = self.outputs(x, state, step, lengths)
        return self.classifier(output), state

    def outputs(
        self, x: Tensor, state: Any = None, step: int = 0, lengths: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Outputs of the layers, and their states: :meth:`forward` without the softmax."""
        if self.hparams["bidirectional"] and (state is not None or step):
            raise ValueError(
                "state and step must be None and 0 for a bidirectional model, which reads whole "
                f"sequences, got step {step}"
            )
        # an HMLSTM tells its boundaries too
        output, state, *_ = self.rnn(x, state, lengths=lengths, step=step)
        return output, state

    def statistics_step(self, batch: Any) -> None:
        """Run over a minibatch for its statistics."""
        self.outputs(batch.x.to(self.classifier.weight), lengths=batch.lengths)

    def examples(self, data: Any) -> Iterator[tuple[str, str, Callable[[Axes], None]]]:
        """Posteriors of two validation utterances, of a model in evaluation.

        Args:
            data: the data, loaded.

        Yields:
            A title, a caption, and what draws the figure.
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
        """A caption for the posteriors of an utterance, and a class at each step for a line.

        Args:
            data: the data, loaded.
            batch: a minibatch of this utterance alone.
            scores: of all its steps ``(T, 1, num_classes)``.
        """
        raise NotImplementedError
