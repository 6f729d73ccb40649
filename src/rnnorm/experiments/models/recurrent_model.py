"""The base of all tasks' models: their layers and states, and the logging of scores."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import log
from typing import Any, Literal

import lightning.pytorch as lightning
import torch
from torch import Tensor

from rnnorm.experiments.console import check_at_least
from rnnorm.experiments.models.layers import recurrent
from rnnorm.experiments.models.measures import SamplingError
from rnnorm.experiments.recipe.values import check_choices
from rnnorm.experiments.training import processes
from rnnorm.experiments.training.score import SAMPLING_ERROR, Score


class RecurrentModel(lightning.LightningModule):
    """A model with recurrent layers.

    A subclass makes its layers by ``make_layer(input_size)``, with further arguments of
    :func:`rnnorm.experiments.models.layers.recurrent`, and logs the metrics of a minibatch
    (:meth:`evaluate`). If it predicts classes (:meth:`predict`), ``beside`` may hold other models,
    whose predictions are averaged with its own (:meth:`prediction`).

    Args:
        cell: ``"LSTM"``, ``"GRU"``, ``"RNN"``, ``"LiGRU"``, ``"IndRNN"``, ``"MIRNN"``,
            ``"ClockworkRNN"`` or ``"HMLSTM"``.
        norm: the normalisation: None, ``"batch"``, ``"layer"``, ``"rms"``, or a preset's name.
        norm_options: fields of the norm's spec, such as :class:`rnnorm.BatchNorm`, to change.
        hidden_size: units of a layer, in each direction.
        init: name of the recipe in :mod:`rnnorm.init` without its underscore, or None for
            ``torch.nn``'s initialisation.
        initial_noise: standard deviation of the Gaussian noise on h_0 in training.
        learn_initial_state: whether h_0 and c_0 are parameters, or with ``"from_input"`` an affine
            function of the mean of the sequence.
        cell_options: arguments of the cell's class: ``bias``, ``peephole``, ``reset_after``,
            ``periods``, ``boundary``, ``slope``, ``nonlinearity``.
        recurrent_dropout: None, ``"Zoneout"``, ``"CellDropout"`` or ``"SequenceDropout"``.
        recurrent_dropout_options: fields of that class to change.

    Attributes:
        score: the metric of the best checkpoint.
        writes: what ``rnnorm write`` does with the model, and how to ask for it.
        kind: what a model is that writes, for messages.
        in_processes: whether several processes may train; the loss is then weighted by
            ``processes.loss_weight``.
        reinforces: whether the loss has a term that trains an HMLSTM's sampled boundaries, which
            pass no gradient.
        logged: what the last training step logged as ``train/NAME``: by ``NAME`` the mean and the
            number of its terms, for :class:`rnnorm.experiments.training.metrics.TrainingScores`.

    Raises:
        ValueError: if boundaries are sampled that the loss would not train, or given by a task that
            has none, a size or a number of layers is less than 1, a number of classes is less than
            0, or the ``dropout`` of a subclass is out of its range.
    """

    score: Score
    writes = "writes nothing"
    kind: str
    in_processes = False
    reinforces = False

    def __init__(
        self,
        cell: Literal[
            "LSTM", "GRU", "RNN", "LiGRU", "IndRNN", "MIRNN", "ClockworkRNN", "HMLSTM"
        ] = "LSTM",
        norm: str | None = None,
        norm_options: dict[str, Any] | None = None,
        hidden_size: int = 100,
        init: str | None = "orthogonal",
        initial_noise: float = 0.0,
        learn_initial_state: bool | Literal["from_input"] = False,
        cell_options: dict[str, Any] | None = None,
        recurrent_dropout: Literal["Zoneout", "CellDropout", "SequenceDropout"] | None = None,
        recurrent_dropout_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        # the subclass's arguments are included
        self.save_hyperparameters()
        check_choices(type(self), self.hparams)
        boundary, lacks = (cell_options or {}).get("boundary"), None
        if boundary == "sample" and not self.reinforces:
            lacks = "its loss has no term by which sampled boundaries learn"
        elif boundary == "given" and "boundaries" not in self.hparams:
            lacks = "its data give no boundaries"
        if lacks:
            raise ValueError(
                "cell_options boundary must be 'step' or 'soft' for this task, got "
                f"{boundary!r}: {lacks}"
            )
        # 0 classes are allowed, for models that do not classify
        for least, endings in ((0, "classes"), (1, ("size", "layers"))):
            given = self.hparams.items()
            check_at_least(least, **{name: n for name, n in given if name.endswith(endings)})
        if not 0 <= (rate := self.hparams.get("dropout", 0.0)) <= 1:
            raise ValueError(f"dropout must be from 0 to 1, got {rate}")
        self.sampling_error = SamplingError()
        self.logged: dict[str, tuple[Tensor, int]] = {}
        # in a list the others are no part of this model: a checkpoint does not hold them
        self.beside: list[RecurrentModel] = []
        self.make_layer = partial(
            recurrent,
            cell,
            hidden_size=hidden_size,
            norm=norm,
            norm_options=norm_options,
            initial_noise=initial_noise,
            learn_initial_state=learn_initial_state,
            cell_options=cell_options,
            recurrent_dropout=recurrent_dropout,
            recurrent_dropout_options=recurrent_dropout_options,
        )

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        """Log a mean over ``batch_size`` terms, over all processes if there are several.

        Without ``batch_size``, as a callback may log, the value is no part of the training scores.
        """
        part, _, of = name.partition("/")
        terms = options.get("batch_size")
        if part == "train" and terms is not None:
            self.logged[of] = torch.as_tensor(value).detach(), terms
        if processes.count() > 1:
            if self.training and isinstance(value, Tensor) and terms is not None:
                value = value.detach() * processes.loss_weight(terms)
            options["sync_dist"] = True
        super().log(name, value, *args, **options)

    def log_score(self, part: str, sums: Tensor, terms: Tensor | None = None) -> None:
        """Log the score of a minibatch of independent rows, and on the test set its sampling error.

        Args:
            part: ``"train"``, ``"val"`` or ``"test"``.
            sums: number of right, or of wrong, terms of each row ``(B,)``.
            terms: number of terms of each row ``(B,)``; 1 by default.
        """
        # without terms no value has to be copied from the device
        count = len(sums) if terms is None else int(terms.sum())
        # lightning weights its mean over minibatches by batch_size
        mean = sums.sum() / max(1, count)
        self.log(f"{part}/{self.score.name}", mean, prog_bar=part != "train", batch_size=count)
        if part == "test":
            self.log_sampling_error(sums, torch.ones_like(sums) if terms is None else terms)

    def epoch_scores(self, means: dict[str, float]) -> dict[str, float]:
        """Return an epoch's training scores, given the mean over its terms of each logged value."""
        return means

    def log_sampling_error(self, sums: Tensor, terms: Tensor) -> None:
        """Update and log the :class:`SamplingError` of the test score with a minibatch's rows."""
        self.sampling_error.update(sums, terms)
        self.log(SAMPLING_ERROR, self.sampling_error, batch_size=len(sums))

    def expect_size(self, name: str, found: int, what: str) -> None:
        """Refuse data that do not fit a size of the model.

        Args:
            name: name of the model's argument.
            found: the size that the data need.
            what: description of this size.

        Raises:
            ValueError: if the argument differs from the size.
        """
        if (given := self.hparams[name]) != found:
            raise ValueError(f"model.init_args.{name} must be {found}, {what}, got {given}")

    def predict(self, name: str, batch: Any) -> Tensor:
        """Compute the scores of the classes of a minibatch, along the last dimension.

        Args:
            name: ``"train"``, ``"val"`` or ``"test"``; each carries states of its own.
            batch: the minibatch.
        """
        raise NotImplementedError

    def prediction(self, name: str, batch: Any) -> Tensor:
        """Return scores whose softmax is the mean of the predictions of this model and the others.

        The arguments are those of :meth:`predict`.
        """
        scores = self.predict(name, batch)
        if not self.beside:
            return scores
        every = [scores, *(other.predict(name, batch) for other in self.beside)]
        return torch.stack([one.log_softmax(-1) for one in every]).logsumexp(0) - log(len(every))

    def evaluate(self, name: str, batch: Any) -> object:
        """Log the metrics of a minibatch.

        Args:
            name: prefix of the metrics' names, ``"val"`` or ``"test"``.
            batch: the minibatch.
        """
        raise NotImplementedError

    def export_inputs(self, steps: int, rows: int) -> dict[str, Any] | None:
        """Return example inputs of ``forward`` by name, or None if no exported file can hold it.

        The model is in evaluation mode. :func:`whole_sequences` and :func:`stream` make the inputs.

        Args:
            steps: time steps of the example.
            rows: rows of the example.
        """
        return None

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log the metrics of a validation minibatch."""
        self.evaluate("val", batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Log the metrics of a test minibatch."""
        self.evaluate("test", batch)


def whole_sequences(x: Tensor) -> dict[str, Any]:
    """Return the inputs of a model that reads sequences from their first step to their last."""
    return {"x": x, "lengths": torch.full((x.size(1),), len(x))}


def stream(model: RecurrentModel, x: Tensor) -> dict[str, Any]:
    """Return the inputs of a model that continues from a state, or of whole sequences if it cannot.

    Args:
        model: returns the states after the last step as its second result.
        x: sequences ``(T, B)`` or ``(T, B, features)``.
    """
    given = model.hparams
    if given.get("bidirectional") or given["learn_initial_state"] == "from_input":
        return whole_sequences(x)
    with torch.no_grad():
        state = map_states(model(x)[1], torch.zeros_like)
    return {"x": x, "state": state, "step": torch.zeros(x.size(1), dtype=torch.int64)}


def map_states(state: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to each of the states."""
    return tuple(map(function, state)) if isinstance(state, tuple) else function(state)


def rows_of(state: Any, rows: Tensor) -> Any:
    """Select the states of some rows."""
    return map_states(state, lambda one: one[:, rows])


def side_by_side(states: Tensor) -> Tensor:
    """Concatenate the states of a layer's directions ``(D, B, H)`` to ``(B, D H)``."""
    return states.transpose(0, 1).flatten(1)
