"""A recurrent model that predicts the next character or word of a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, one_hot

import rnnorm
from rnnorm.experiments.data.text.windows import PADDING, TextData, Window
from rnnorm.experiments.models.feeding import Feeding, Written, write
from rnnorm.experiments.models.generation_training import Progress, Task, Way, training_by_name
from rnnorm.experiments.models.layers import initialise, normalise_weights, set_forget_bias
from rnnorm.experiments.models.measures import Likelihood, Unit, cross_entropy
from rnnorm.experiments.models.recurrent_model import RecurrentModel, rows_of, stream
from rnnorm.experiments.tasks.language import writing
from rnnorm.experiments.tasks.language.boundaries import (
    boundaries_in_a_sentence,
    check_boundaries,
    ends_of_units,
)
from rnnorm.experiments.tasks.language.carried_states import CarriedStates
from rnnorm.experiments.training import processes
from rnnorm.experiments.training.score import Score
from rnnorm.layers.hmlstm import Boundaries
from rnnorm.norm.spec import check_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Examples = Iterator[tuple[str, str, Callable[[Axes], None]]]

_SCORES = {"nats": "loss", "bits": "bits_per_character", "perplexity": "perplexity"}


class LanguageModel(RecurrentModel):
    """Recurrent layers on one-hot or embedded symbols, and a softmax over the next symbol.

    Args:
        vocabulary_size: number of symbols.
        num_layers: number of layers.
        embedding_size: width of the embedding, drawn from a unit Gaussian; None for one-hot input.
        dropout: dropout of the embedding, between layers and of the last output, never on recurrent
            connections (Zaremba et al. 2014).
        reduction: the loss of a minibatch is the ``"mean"`` over its symbols, or the ``"sum"`` over
            the steps of the mean over its rows.
        unit: unit of the score: ``"nats"``, ``"bits"`` or ``"perplexity"``.
        init: name of the recipe in :mod:`rnnorm.init` without its underscore, with zero biases;
            ``"uniform"`` for all weights and biases; or None for ``torch.nn``'s initialisation.
        init_range: bound of ``"uniform"``.
        forget_bias: the forget gate's bias of an LSTM, or None to leave it as ``init`` has it.
        weight_norm: whether to learn direction and length of the recurrent weights' rows separately
            (Salimans & Kingma 2016).
        norm_stabilizer: weight β of :func:`rnnorm.norm_stabilizer` of the last layer's outputs,
            added to the mean loss; with a reduction of ``"sum"`` both are multiplied by the steps.
        boundaries: the symbols that end a unit of each layer but the last, such as a word and a
            sentence; for an HMLSTM whose boundaries are ``"given"``.
        training: way to train, see :mod:`rnnorm.experiments.models.generation_training`; any
            but ``"mixer"``, whose reward needs sentences that end and a reference.
        training_options: arguments of the way's class.
        **layers: arguments of :class:`rnnorm.experiments.models.recurrent_model.RecurrentModel`.

    Attributes:
        score: the metric of the best checkpoint; lower is better.

    Raises:
        ValueError: if a name is unknown, ``norm_stabilizer`` is negative, ``learn_initial_state``
            is ``"from_input"``, ``boundaries`` do not fit the cell and its layers, or the way to
            train does not fit a text, ``norm_stabilizer`` or sampled boundaries.
    """

    kind = "one of characters or words"
    writes = "continues a text: write RUN --begin TEXT"
    reinforces = True
    ends: Tensor | None

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
        weight_norm: bool = False,
        norm_stabilizer: float = 0.0,
        boundaries: list[list[str]] | None = None,
        training: Way = "teacher",
        training_options: dict[str, Any] | None = None,
        **layers: Any,
    ) -> None:
        super().__init__(init=init, **layers)
        if layers.get("learn_initial_state") == "from_input":
            raise ValueError(
                "learn_initial_state must be True or False for a text, got 'from_input': the mean "
                "of a window tells of the symbols that are to be predicted"
            )
        check_number("norm_stabilizer", norm_stabilizer, 0.0)
        check_boundaries(boundaries, self.hparams)
        if training == "mixer":
            raise ValueError(
                "training must be any way but 'mixer' for a text, which has no reference to reward"
            )
        self.way = training_by_name(training, training_options)
        # free running takes a different number of steps in every process
        self.in_processes = training == "teacher"
        if training != "teacher" and (norm_stabilizer or self._samples):
            raise ValueError(
                "training must be 'teacher' with norm_stabilizer or sampled boundaries, whose cost "
                f"is of one pass over the text, got {training!r}"
            )
        self.val_likelihood, self.test_likelihood = Likelihood(unit), Likelihood(unit)
        self.score = Score(_SCORES[unit], "min")
        self.embedding = (
            None if embedding_size is None else nn.Embedding(vocabulary_size, embedding_size)
        )
        # a checkpoint keeps which symbols are ends: a text is continued without its data
        ends = None if boundaries is None else torch.zeros(vocabulary_size, len(boundaries))
        self.register_buffer("ends", ends)
        self.rnn = self.make_layer(
            (embedding_size or vocabulary_size) + len(boundaries or ()),
            num_layers=num_layers,
            # torch.nn warns about dropout in a single layer
            dropout=dropout if num_layers > 1 else 0.0,
        )
        self.classifier = nn.Linear(self.rnn.hidden_size, vocabulary_size)
        self._initialise(init)
        set_forget_bias(self.rnn, forget_bias)
        if weight_norm:
            normalise_weights(self.rnn)
        self._carried = CarriedStates()

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
        """Check that the text has as many symbols as the model, and those that are boundaries.

        Raises:
            ValueError: if the text needs another ``vocabulary_size`` or lacks a symbol.
        """
        what = "the symbols of the text"
        self.expect_size("vocabulary_size", len(data.vocabulary), what)
        if self.ends is not None:
            self.ends.copy_(ends_of_units(self.hparams["boundaries"], data.vocabulary))

    def forward(
        self, x: Tensor, state: Any = None, step: int = 0, lengths: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Compute the scores of the next symbols.

        Args:
            x: symbols ``(T, B)``.
            state: states of the layers after the previous symbol, or None for the initial states.
            step: index of the first frame in its sequence.
            lengths: symbols of each row ``(B,)`` if not all have ``T``.

        Returns:
            Scores ``(T, B, vocabulary_size)`` and the states after the last symbol.
        """
        output, state, _ = self.read(x, state, step, lengths)
        return self.scores(output), state

    def export_inputs(self, steps: int, rows: int) -> dict[str, Any]:
        """Return symbols with the states before them."""
        return stream(self, torch.zeros(steps, rows, dtype=torch.int64))

    def read(
        self, x: Tensor, state: Any = None, step: int = 0, lengths: Tensor | None = None
    ) -> tuple[Tensor, Any, Boundaries | None]:
        """Compute the layers' outputs and states, and the boundaries that an HMLSTM finds."""
        output, state, *found = self.rnn(self.embed(x), state, lengths=lengths, step=step)
        return output, state, found[0] if found else None

    def embed(self, symbols: Tensor) -> Tensor:
        """Return the layers' inputs: the symbols' shape with a dimension of features more."""
        if self.embedding is None:
            x = one_hot(symbols, self.hparams["vocabulary_size"]).to(self.classifier.weight)
        else:
            x = dropout(self.embedding(symbols), self.hparams["dropout"], self.training)
        return x if self.ends is None else torch.cat([x, self.ends[symbols]], -1)

    def scores(self, features: Tensor) -> Tensor:
        """Compute the scores of the next symbols from the layers' outputs."""
        scores: Tensor = self.classifier(dropout(features, self.hparams["dropout"], self.training))
        return scores

    def steps(
        self, x: Tensor, at: Any, step: int, lengths: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Run the layers over embedded symbols, from given states and a given step."""
        output, state, *_ = self.rnn(x, at, lengths=lengths, step=step)
        return output, state

    def rows(self, at: Any, kept: Tensor) -> Any:
        """Select the states of some rows."""
        return rows_of(at, kept)

    def training_step(self, batch: Window, batch_idx: int) -> Tensor:
        """Compute the loss of a minibatch: the cross-entropy, and the recipe's other terms."""
        if self.hparams["training"] == "teacher":
            loss = self._passed(batch)
        else:
            loss = self._generated(batch)
        if self.hparams["reduction"] == "mean":
            return loss * processes.loss_weight(batch.predictions)
        rows = batch.y.size(1)
        return loss * (batch.predictions / rows) * processes.loss_weight(rows)

    @property
    def _samples(self) -> bool:
        """Return whether an HMLSTM samples its boundaries."""
        return (self.hparams["cell_options"] or {}).get("boundary") == "sample"

    def _passed(self, batch: Window) -> Tensor:
        """Compute the loss of one pass over the text."""
        output, boundaries = self._read_on("train", batch)
        scores = self.scores(output)
        loss = _cross_entropy(scores, batch)
        self.log("train/loss", loss, prog_bar=True, batch_size=batch.predictions)
        if beta := self.hparams["norm_stabilizer"]:
            loss = loss + rnnorm.norm_stabilizer(output, beta, batch.lengths)
        if boundaries is not None and self._samples:
            nats = _cross_entropy(scores.detach(), batch, "none").view_as(batch.y)
            # the scale makes the sum of the rows' means the mean over the predictions
            loss = loss + boundaries.reinforce(nats * (nats.size(1) / batch.predictions))
        return loss

    def _generated(self, batch: Window) -> Tensor:
        """Compute the loss of a way to train that may feed the model's own symbols."""
        state = self._carried.before("train", batch)

        def written(feeding: Feeding) -> Written:
            found = write(self, state, feeding)
            self._carried.keep("train", batch, found.at)
            return found

        lengths, x, y = batch.lengths, batch.x, batch.y
        if lengths is None:
            lengths = torch.full(y.shape[1:], len(y), device=y.device)
        longest = int(lengths.max())
        symbols = self.hparams["vocabulary_size"]
        task = Task(written, self.scores, x[:longest], y[:longest], lengths, symbols)
        loss = self.way.loss(task, Progress(self.global_step, self.current_epoch))["loss"]
        self.log("train/loss", loss, prog_bar=True, batch_size=batch.predictions)
        return loss

    def statistics_step(self, batch: Window) -> None:
        """Run over a minibatch to collect its statistics, with the state carried as in training."""
        batch = batch._replace(x=batch.x.to(self.device))
        self._read_on("statistics", batch)

    def epoch_scores(self, means: dict[str, float]) -> dict[str, float]:
        """Return an epoch's mean cross-entropy, and the score that it makes."""
        likelihood = Likelihood(self.hparams["unit"])
        likelihood.update(torch.tensor(means["loss"]), 1)
        return means | {self.score.name: float(likelihood.compute())}

    def predict(self, name: str, batch: Window) -> Tensor:
        """Compute the scores of the next symbols ``(T, B, vocabulary_size)``."""
        output, _ = self._read_on(name, batch)
        return self.scores(output)

    def evaluate(self, name: str, batch: Window) -> None:
        """Log the likelihood of a minibatch."""
        loss, symbols = self._loss(name, batch), batch.predictions
        likelihood = getattr(self, f"{name}_likelihood")
        likelihood(loss, symbols)
        if self.score.name != "loss":
            self.log(f"{name}/loss", loss, batch_size=symbols)
        self.log(f"{name}/{self.score.name}", likelihood, prog_bar=True, batch_size=symbols)

    def write_samples(self, data: TextData, count: int) -> list[str]:
        """Write texts from "the" on, as ``rnnorm write`` does.

        Where the training text has no "the", they begin as the validation text does.
        """
        vocabulary, dataset = data.vocabulary, data.hparams["dataset"]
        try:
            beginning = writing.numbers("the", vocabulary, dataset)
        except ValueError:
            # a loop over the loader would change its state
            loader = data.loaders["val"]
            beginning = loader.batch(0, loader.draw()).x[:1, 0]
        return writing.texts(self, vocabulary, dataset, [beginning], count=count)

    @property
    def examples(self) -> Callable[[TextData], Examples] | None:
        """Return the method that shows an HMLSTM's boundaries in a report, or None."""
        if self.hparams["cell"] != "HMLSTM":
            return None
        return partial(boundaries_in_a_sentence, self)

    def _loss(self, name: str, batch: Window) -> Tensor:
        """Compute the mean cross-entropy of a minibatch's symbols, in nats."""
        return _cross_entropy(self.prediction(name, batch), batch)

    def _read_on(self, name: str, batch: Window) -> tuple[Tensor, Boundaries | None]:
        """Compute outputs and boundaries of a minibatch, with the state carried between windows."""
        state = self._carried.before(name, batch)
        output, state, boundaries = self.read(batch.x, state, batch.step, batch.lengths)
        self._carried.keep(name, batch, state)
        return output, boundaries

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the state before the next training window, for every process."""
        checkpoint["carried_state"] = self._carried.saved()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the state before the next training window."""
        self._carried.restore(checkpoint.get("carried_state"))


def _cross_entropy(
    scores: Tensor, batch: Window, reduction: Literal["mean", "none"] = "mean"
) -> Tensor:
    """Compute the cross-entropy of a minibatch's symbols in nats, without the padding."""
    return cross_entropy(
        scores.flatten(0, 1), batch.y.flatten(), ignore_index=PADDING, reduction=reduction
    )
