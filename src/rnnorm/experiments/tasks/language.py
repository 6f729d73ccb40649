"""Language modelling: predict the next character or word of a text."""

from __future__ import annotations

from typing import Any, Literal

import lightning.pytorch as lightning
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, one_hot

import rnnorm
from rnnorm.experiments.data.resumable import Resumable
from rnnorm.experiments.data.text.corpora import Corpus, Dataset, Text
from rnnorm.experiments.data.text.loaded_text import TextData
from rnnorm.experiments.data.text.windows import (
    PADDING,
    CarriedWindows,
    IndependentWindows,
    Stream,
    Window,
)
from rnnorm.experiments.models.layers import initialise, recurrent
from rnnorm.experiments.models.likelihood import Likelihood, Unit
from rnnorm.experiments.training.score import Score

_SCORES = {"nats": "loss", "bits": "bits_per_character", "perplexity": "perplexity"}


class LanguageData(TextData):
    """A text in minibatches :class:`rnnorm.experiments.data.text.windows.Window`.

    Args:
        dataset: ``"ptb-char"``, ``"ptb-word"``, ``"text8"`` or ``"text"``, see
            :func:`rnnorm.experiments.data.text.corpora.load_corpus`.
        data_dir: folder of the text's files.
        file: the file of ``"text"``, or another name for that of ``"text8"``.
        windows: ``"independent"`` windows in random order, each from the initial state, or
            ``"carried"``, in the order of the text, with the state going on.
        length: predictions of a window.
        crop: start each epoch of independent windows at another random place.
        batch_size: rows of a training minibatch.
        val_by: validate by ``"windows"`` as in training, or as one ``"stream"`` with the state and
            the time step going on from the first symbol to the last.
        test_by: the same for the test text.
        eval_length: predictions of a window in validation and test; ``length`` by default.
        eval_batch_size: rows of a minibatch of windows in validation and test.
        train_size: keep only this many symbols of the training text.
        eval_size: keep only this many symbols of the validation and of the test text.
        seed: seed of the order and the crop of the training text, new ones each epoch.

    Raises:
        ValueError: an argument is none of these, or less than 1.
    """

    def __init__(
        self,
        dataset: Dataset = "ptb-char",
        data_dir: str | None = None,
        file: str | None = None,
        windows: Literal["independent", "carried"] = "independent",
        length: int = 100,
        crop: bool = False,
        batch_size: int = 64,
        val_by: Literal["windows", "stream"] = "windows",
        test_by: Literal["windows", "stream"] = "stream",
        eval_length: int | None = None,
        eval_batch_size: int = 64,
        train_size: int | None = None,
        eval_size: int | None = None,
        seed: int = 1,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        if windows not in ("independent", "carried"):
            raise ValueError(f"windows must be 'independent' or 'carried', got {windows!r}")
        if crop and windows == "carried":
            raise ValueError("crop must be False with windows='carried', which read all in order")
        for name, value in self.hparams.items():
            if name.endswith("_by") and value not in ("windows", "stream"):
                raise ValueError(f"{name} must be 'windows' or 'stream', got {value!r}")
        self.check_sizes()
        self._test: Text | None = None

    def cut(self, corpus: Corpus) -> dict[str, Resumable[Window]]:
        """Windows of the three parts."""
        given = self.hparams
        loaders = {"train": self._training(_first(corpus.train, given["train_size"]))}
        for name, whole in (("val", corpus.val), ("test", corpus.test)):
            text = _first(whole, given["eval_size"])
            loaders[name] = self._evaluation(text, given[f"{name}_by"])
        self._test = text
        return loaders

    def _training(self, text: Text) -> Resumable[Window]:
        given = self.hparams
        length, rows = given["length"], given["batch_size"]
        if given["windows"] == "carried":
            return CarriedWindows(text, length, rows)
        return IndependentWindows(text, length, rows, given["seed"], given["crop"])

    def _evaluation(self, text: Text, by: str) -> Resumable[Window]:
        given = self.hparams
        if by == "stream":
            return Stream(text)
        length, rows = given["eval_length"] or given["length"], given["eval_batch_size"]
        if given["windows"] == "carried":
            return CarriedWindows(text, length, rows, whole=False)
        return IndependentWindows(text, length, rows)

    def test_windows(self, length: int) -> IndependentWindows:
        """The test text in windows that each start from the initial state.

        Args:
            length: predictions of a window.

        Raises:
            ValueError: the text is shorter than a window.
        """
        if length < 1:
            raise ValueError(f"lengths must be at least 1, got {length}")
        assert self._test is not None
        return IndependentWindows(self._test, length, self.hparams["eval_batch_size"])


def _first(text: Text, size: int | None) -> Text:
    return Text(text.symbols[:size], text.source)


class LanguageModel(lightning.LightningModule):
    """Recurrent layers on one-hot or embedded symbols, and a softmax over the next symbol.

    Args:
        vocabulary_size: how many symbols there are.
        cell: ``"LSTM"``, ``"GRU"`` or ``"RNN"``.
        norm: what is normalised: None, ``"batch"``, ``"layer"``, or a preset's name.
        norm_options: fields of :class:`rnnorm.BatchNorm` or :class:`rnnorm.LayerNorm` to change.
        hidden_size: units of a layer.
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
        initial_noise: standard deviation of the Gaussian noise on h_0 in training.
        learn_initial_state: make h_0 and c_0 parameters.

    Attributes:
        score: the metric of the best checkpoint; lower is better.

    Raises:
        ValueError: a name is unknown.
    """

    def __init__(
        self,
        vocabulary_size: int = 50,
        cell: Literal["LSTM", "GRU", "RNN"] = "LSTM",
        norm: str | None = None,
        norm_options: dict[str, Any] | None = None,
        hidden_size: int = 1000,
        num_layers: int = 1,
        embedding_size: int | None = None,
        dropout: float = 0.0,
        reduction: Literal["mean", "sum"] = "mean",
        unit: Unit = "bits",
        init: str | None = "orthogonal",
        init_range: float = 0.1,
        forget_bias: float | None = None,
        initial_noise: float = 0.0,
        learn_initial_state: bool = False,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction must be 'mean' or 'sum', got {reduction!r}")
        self.val_likelihood, self.test_likelihood = Likelihood(unit), Likelihood(unit)
        self.score = Score(_SCORES[unit], "min")
        self.embedding = (
            None if embedding_size is None else nn.Embedding(vocabulary_size, embedding_size)
        )
        self.rnn = recurrent(
            cell,
            embedding_size or vocabulary_size,
            hidden_size,
            norm,
            norm_options,
            num_layers=num_layers,
            # torch.nn warns of a dropout that has no place
            dropout=dropout if num_layers > 1 else 0.0,
            learn_initial_state=learn_initial_state,
            initial_noise=initial_noise,
        )
        self.classifier = nn.Linear(hidden_size, vocabulary_size)
        if init is not None:
            self._initialise(init)
        if forget_bias is not None:
            rnnorm.init.forget_bias_(self.rnn, forget_bias)
        # states that go on into the next window, of training, validation, test and statistics
        self._states: dict[str, Any] = {}

    def _initialise(self, init: str) -> None:
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

    def validation_step(self, batch: Window, batch_idx: int) -> None:
        """Likelihood of the validation text."""
        self._evaluate("val", self.val_likelihood, batch)

    def test_step(self, batch: Window, batch_idx: int) -> None:
        """Likelihood of the test text."""
        self._evaluate("test", self.test_likelihood, batch)

    def statistics_step(self, batch: Window) -> None:
        """Run over a minibatch for its statistics, with the state going on as in training."""
        batch = batch._replace(x=batch.x.to(self.device))
        self._scores("statistics", batch)

    def _evaluate(self, name: str, likelihood: Likelihood, batch: Window) -> None:
        loss, symbols = self._loss(name, batch), batch.predictions
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
