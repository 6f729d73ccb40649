"""Recurrent layers that predict the next character or word of a text."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, one_hot

import rnnorm
from rnnorm.experiments.data.text.loaded_text import TextData
from rnnorm.experiments.data.text.windows import PADDING, Window
from rnnorm.experiments.models.layers import initialise
from rnnorm.experiments.models.likelihood import Likelihood, Unit
from rnnorm.experiments.models.recurrent_model import RecurrentModel
from rnnorm.experiments.training.score import Score

_SCORES = {"nats": "loss", "bits": "bits_per_character", "perplexity": "perplexity"}


class LanguageModel(RecurrentModel):
    """Recurrent layers on one-hot or embedded symbols, and a softmax over the next symbol.

    Args:
        vocabulary_size: how many symbols there are.
        num_layers: layers.
        embedding_size: width of the embedding, drawn from a unit Gaussian; None for one-hot input.
        dropout: on the embedding, between layers and on the last output, never on the recurrent
            connections (Zaremba et al. 2014).
        reduction: the loss of a minibatch is the ``"mean"`` over its symbols, or the ``"sum"`` over
            the steps of the mean over its rows.
        unit: what the score is in: ``"nats"``, ``"bits"`` or ``"perplexity"``.
        init: name of the recipe in :mod:`rnnorm.init` without its underscore, with zero biases;
            ``"uniform"`` for all weights and biases; or None for those of ``torch.nn``.
        init_range: bound of ``"uniform"``.
        forget_bias: the forget gate's bias of an LSTM, or None to leave it as ``init`` has it.
        **layers: of :class:`rnnorm.experiments.models.recurrent_model.RecurrentModel`.

    Attributes:
        score: the metric of the best checkpoint; lower is better.

    Raises:
        ValueError: a name is unknown.
    """

    def __init__(
        self,
        vocabulary_size: int = 50,
        num_layers: int = 1,
        embedding_size: int | None = None,
        dropout: float = 0.0,
        reduction: Literal["mean", "sum"] = "mean",
        unit: Unit = "bits",
        init: str | None = "orthogonal",
        init_range: float = 0.1,
        forget_bias: float | None = None,
        **layers: Any,
    ) -> None:
        super().__init__(init=init, **layers)
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction must be 'mean' or 'sum', got {reduction!r}")
        self.val_likelihood, self.test_likelihood = Likelihood(unit), Likelihood(unit)
        self.score = Score(_SCORES[unit], "min")
        self.embedding = (
            None if embedding_size is None else nn.Embedding(vocabulary_size, embedding_size)
        )
        self.rnn = self.make_layer(
            embedding_size or vocabulary_size,
            num_layers=num_layers,
            # torch.nn warns of a dropout that has no place
            dropout=dropout if num_layers > 1 else 0.0,
        )
        self.classifier = nn.Linear(self.rnn.hidden_size, vocabulary_size)
        self._initialise(init)
        if forget_bias is not None:
            rnnorm.init.forget_bias_(self.rnn, forget_bias)
        # states that go on into the next window, of training, validation, test and statistics
        self._states: dict[str, Any] = {}

    def _initialise(self, init: str | None) -> None:
        named = dict(self.rnn.named_parameters())
        if init == "uniform":
            bound = self.hparams["init_range"]
            embedding = [] if self.embedding is None else [self.embedding.weight]
            weights = [p for n, p in named.items() if n.startswith(("weight_", "bias_"))]
            for parameter in (*weights, *embedding, *self.classifier.parameters()):
                nn.init.uniform_(parameter, -bound, bound)
            return
        initialise(self.rnn, init, self.classifier)

    def check_data(self, data: TextData) -> None:
        """See whether the text has as many symbols as the model.

        Raises:
            ValueError: it has not.
        """
        size, symbols = self.hparams["vocabulary_size"], len(data.vocabulary)
        if size != symbols:
            raise ValueError(
                f"model.init_args.vocabulary_size must be the {symbols} symbols of the training "
                f"text, got {size}"
            )

    def forward(
        self, x: Tensor, state: Any = None, step: int = 0, lengths: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Scores of the next symbols.

        Args:
            x: symbols ``(T, B)``.
            state: states of the layers after the symbol before, None for the initial ones.
            step: index of the first frame in its sequence.
            lengths: how many symbols each row has ``(B,)`` if not all have ``T``.

        Returns:
            scores ``(T, B, vocabulary_size)`` and the states after the last symbol.
        """
        rate = self.hparams["dropout"]
        if self.embedding is None:
            z = one_hot(x, self.hparams["vocabulary_size"]).to(self.classifier.weight.dtype)
        else:
            z = dropout(self.embedding(x), rate, self.training)
        output, state = self.rnn(z, state, lengths=lengths, step=step)
        return self.classifier(dropout(output, rate, self.training)), state

    def training_step(self, batch: Window, batch_idx: int) -> Tensor:
        """Cross-entropy of a minibatch."""
        loss = self._loss("train", batch)
        self.log("train/loss", loss, prog_bar=True, batch_size=batch.predictions)
        if self.hparams["reduction"] == "mean":
            return loss
        return loss * (batch.predictions / batch.y.size(1))

    def statistics_step(self, batch: Window) -> None:
        """Run over a minibatch for its statistics, with the state going on as in training."""
        batch = batch._replace(x=batch.x.to(self.device))
        self._scores("statistics", batch)

    def evaluate(self, name: str, batch: Window) -> None:
        """Log the likelihood of a minibatch."""
        loss, symbols = self._loss(name, batch), batch.predictions
        likelihood = getattr(self, f"{name}_likelihood")
        likelihood(loss, symbols)
        if self.score.name != "loss":
            self.log(f"{name}/loss", loss, batch_size=symbols)
        self.log(f"{name}/{self.score.name}", likelihood, prog_bar=True, batch_size=symbols)

    def _loss(self, name: str, batch: Window) -> Tensor:
        """Mean cross-entropy of a minibatch's symbols, in nats."""
        scores = self._scores(name, batch).flatten(0, 1)
        return cross_entropy(scores, batch.y.flatten(), ignore_index=PADDING)

    def _scores(self, name: str, batch: Window) -> Tensor:
        state = None if batch.fresh else _each(self._states[name], lambda s: s.to(batch.x.device))
        scores: Tensor
        scores, state = self(batch.x, state, batch.step, batch.lengths)
        if batch.kept:
            self._states[name] = _each(state, Tensor.detach)
        else:
            self._states.pop(name, None)
        return scores

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the state that goes on into the next training window."""
        checkpoint["carried_state"] = self._states.get("train")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on from the state of the checkpoint."""
        if (state := checkpoint.get("carried_state")) is not None:
            self._states["train"] = state


def _each(state: Any, function: Any) -> Any:
    """The states of an LSTM or of another cell, changed one by one."""
    return tuple(map(function, state)) if isinstance(state, tuple) else function(state)
