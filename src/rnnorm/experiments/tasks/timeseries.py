"""Classification of time series of any length: one class for each series."""

from __future__ import annotations

from typing import Any, Literal

import lightning.pytorch as lightning
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchmetrics.classification import MulticlassAccuracy

from rnnorm.experiments.data.loaded_data import LoadedData
from rnnorm.experiments.data.series.series import load_series
from rnnorm.experiments.data.series.series_batches import SeriesBatch, SeriesBatches
from rnnorm.experiments.models.layers import initialise, recurrent
from rnnorm.experiments.training.score import Score


class TimeSeriesData(LoadedData):
    """Time series in minibatches ``SeriesBatch``.

    Args:
        name: of the data set, which its files begin with.
        data_dir: the folder of its files.
        layout: of the files, ``"ts"`` or ``"uci"``
            (:func:`rnnorm.experiments.data.series.series.load_series`).
        features: of ``"uci"``: values of a time step.
        val: share of the training series that validate.
        batch_size: rows of a training minibatch.
        eval_batch_size: rows of a minibatch in validation and test.
        seed: seed of the order of the training series, a new one each epoch.

    Attributes:
        num_features: values of a time step, once the data are loaded.
        classes: their names, once the data are loaded.

    Raises:
        ValueError: a size is less than 1.
    """

    def __init__(
        self,
        name: str = "JapaneseVowels",
        data_dir: str | None = None,
        layout: Literal["ts", "uci"] = "ts",
        features: int = 1,
        val: float = 0.2,
        batch_size: int = 32,
        eval_batch_size: int = 500,
        seed: int = 1,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.check_sizes()
        self.num_features = 0
        self.classes: tuple[str, ...] = ()

    def load(self) -> dict[str, SeriesBatches]:
        """Read, split and scale the series.

        Raises:
            ValueError: a file is broken, or an argument does not fit it.
            FileNotFoundError: a file is missing.
        """
        given = self.hparams
        names = ("name", "data_dir", "layout", "features", "val")
        splits = load_series(*(given[name] for name in names))
        self.classes, self.num_features = splits.classes, splits.train.x[0].size(1)
        loaders = {
            "train": SeriesBatches(splits.train, given["batch_size"], given["seed"]),
            "val": SeriesBatches(splits.val, given["eval_batch_size"]),
            "test": SeriesBatches(splits.test, given["eval_batch_size"]),
        }
        self.notes = []
        for part, loader in loaders.items():
            lengths = [len(x) for x in loader.series.x]
            between = f"{min(lengths)} to {max(lengths)} steps"
            self.notes.append(f"{part}: {len(lengths)} series of {between}")
        return loaders


class TimeSeriesClassifier(lightning.LightningModule):
    """Recurrent layers and a softmax on the last output, or on the mean of all.

    Args:
        input_size: values of a time step.
        num_classes: classes to tell apart.
        cell: ``"LSTM"``, ``"GRU"`` or ``"RNN"``.
        norm: what is normalised: None, ``"batch"``, ``"layer"``, or a preset's name.
        norm_options: fields of :class:`rnnorm.BatchNorm` or :class:`rnnorm.LayerNorm` to change.
        hidden_size: units of a layer, in each direction.
        num_layers: layers.
        bidirectional: whether each layer also reads backwards.
        readout: ``"last"`` for each direction's last output, ``"mean"`` for the mean over the
            steps of the series.
        init: name of the recipe in :mod:`rnnorm.init` without its underscore, or None for
            ``torch.nn``'s initialisation.
        initial_noise: standard deviation of the Gaussian noise on h_0 in training.

    Attributes:
        score: the metric of the best checkpoint, the accuracy.

    Raises:
        ValueError: a name is unknown.
    """

    score = Score("accuracy", "max")

    def __init__(
        self,
        input_size: int = 12,
        num_classes: int = 9,
        cell: Literal["LSTM", "GRU", "RNN"] = "LSTM",
        norm: str | None = None,
        norm_options: dict[str, Any] | None = None,
        hidden_size: int = 100,
        num_layers: int = 1,
        bidirectional: bool = False,
        readout: Literal["last", "mean"] = "last",
        init: str | None = None,
        initial_noise: float = 0.0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        if readout not in ("last", "mean"):
            raise ValueError(f"readout must be 'last' or 'mean', got {readout!r}")
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
        self.val_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.test_accuracy = MulticlassAccuracy(num_classes, average="micro")

    def check_data(self, data: TimeSeriesData) -> None:
        """See whether features and classes fit the model.

        Raises:
            ValueError: they do not.
        """
        for name, found in (("input_size", data.num_features), ("num_classes", len(data.classes))):
            if self.hparams[name] != found:
                raise ValueError(
                    f"model.init_args.{name} must be {found} for {data.hparams['name']}, "
                    f"got {self.hparams[name]}"
                )

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Scores ``(B, num_classes)`` of series ``(T, B, input_size)``."""
        output, state = self.rnn(x, lengths=lengths)
        if self.hparams["readout"] == "mean":
            read = output.sum(0) / lengths.to(output).unsqueeze(1)
        else:
            h_n = state[0] if isinstance(state, tuple) else state
            last = h_n[-1 - self.hparams["bidirectional"] :]
            read = last.transpose(0, 1).flatten(1)
        scores: Tensor = self.classifier(read)
        return scores

    def statistics_step(self, batch: SeriesBatch) -> None:
        """Run over a minibatch for its statistics."""
        self.rnn(batch.x.to(self.device), lengths=batch.lengths)

    def training_step(self, batch: SeriesBatch, batch_idx: int) -> Tensor:
        """Cross-entropy of a minibatch."""
        scores = self(batch.x, batch.lengths)
        loss = cross_entropy(scores, batch.y)
        rows = len(batch.y)
        self.log("train/loss", loss, prog_bar=True, batch_size=rows)
        self.log("train/accuracy", (scores.argmax(1) == batch.y).float().mean(), batch_size=rows)
        return loss

    def validation_step(self, batch: SeriesBatch, batch_idx: int) -> None:
        """Accuracy and cross-entropy on the validation set."""
        self._evaluate("val", self.val_accuracy, batch)

    def test_step(self, batch: SeriesBatch, batch_idx: int) -> None:
        """Accuracy and cross-entropy on the test set."""
        self._evaluate("test", self.test_accuracy, batch)

    def _evaluate(self, name: str, accuracy: MulticlassAccuracy, batch: SeriesBatch) -> None:
        scores = self(batch.x, batch.lengths)
        accuracy(scores, batch.y)
        rows = len(batch.y)
        self.log(f"{name}/loss", cross_entropy(scores, batch.y), batch_size=rows)
        self.log(f"{name}/accuracy", accuracy, prog_bar=True, batch_size=rows)
