"""Sequential image classification: an image is read one pixel or one row a step."""

from __future__ import annotations

from typing import Any, Literal

import lightning.pytorch as lightning
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy
from torchmetrics.classification import MulticlassAccuracy

from rnnorm.experiments.data.batches import Batches
from rnnorm.experiments.data.images.images import Images, Splits, load_images
from rnnorm.experiments.data.loaded_data import LoadedData
from rnnorm.experiments.models.layers import initialise, recurrent
from rnnorm.experiments.training.score import Score

Permutation = Literal["none", "fixed", "published"]


def step_order(steps: int, permutation: Permutation, seed: int) -> Tensor:
    """Which part of the image is read at each step.

    Args:
        steps: the number of steps.
        permutation: ``"none"`` for the image's own order, ``"fixed"`` for one random order of all
            steps, ``"published"`` for the draw with replacement of the code that Cooijmans et al.
            released: about 36 % of the pixels are never read, others more than once. With 784
            steps and seed 1 it is their very draw.
        seed: seed of the random order.

    Returns:
        Indices ``(steps,)``.

    Raises:
        ValueError: ``permutation`` is none of these.
    """
    if permutation == "none":
        return torch.arange(steps)
    if permutation == "fixed":
        return torch.from_numpy(np.random.RandomState(seed).permutation(steps))
    if permutation == "published":
        return torch.from_numpy(np.random.RandomState(seed).randint(0, steps, size=steps))
    raise ValueError(f"permutation must be 'none', 'fixed' or 'published', got {permutation!r}")


class PixelData(LoadedData):
    """Images as sequences, in minibatches ``(x, y)`` of shapes ``(T, B, I)`` and ``(B,)``.

    Args:
        dataset: ``"digits"`` (64 pixels, comes with scikit-learn) or ``"mnist"`` (784 pixels).
        data_dir: folder of MNIST's four idx-gz files; without it they are downloaded.
        step: what is read at each step, a ``"pixel"`` or a ``"row"``.
        permutation: the order of the steps, see :func:`step_order`.
        permutation_seed: seed of that order.
        shrink: average squares of ``shrink`` by ``shrink`` pixels first.
        train_size: keep only this many training images.
        batch_size: rows of a training minibatch.
        eval_batch_size: rows of a minibatch in validation and test.
        seed: seed of the order of the training images, a new one each epoch.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        dataset: Literal["digits", "mnist"] = "digits",
        data_dir: str | None = None,
        step: Literal["pixel", "row"] = "pixel",
        permutation: Permutation = "none",
        permutation_seed: int = 1,
        shrink: int = 1,
        train_size: int | None = None,
        batch_size: int = 100,
        eval_batch_size: int = 500,
        seed: int = 1,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        if step not in ("pixel", "row"):
            raise ValueError(f"step must be 'pixel' or 'row', got {step!r}")
        for name in ("shrink", "batch_size", "eval_batch_size"):
            if self.hparams[name] < 1:
                raise ValueError(f"{name} must be at least 1, got {self.hparams[name]}")

    def load(self) -> dict[str, Batches]:
        """Load the images and order their steps.

        Raises:
            ValueError: ``shrink`` does not divide the image, or there are fewer than
                ``train_size`` training images.
            FileNotFoundError: ``data_dir`` lacks a file.
        """
        given = self.hparams
        splits = load_images(given["dataset"], given["data_dir"])
        size, most = given["train_size"], len(splits.train.y)
        if size is not None:
            if not 1 <= size <= most:
                raise ValueError(
                    f"train_size must be 1 to {most} for {given['dataset']}, got {size}"
                )
            splits = Splits(Images(splits.train.x[:size], splits.train.y[:size]), *splits[1:])
        loaders = {}
        for name, images in splits._asdict().items():
            train = name == "train"
            batch_size = given["batch_size" if train else "eval_batch_size"]
            seed = given["seed"] if train else None
            loaders[name] = Batches(self._sequences(images.x), images.y, batch_size, seed)
        return loaders

    def _sequences(self, images: Tensor) -> Tensor:
        """Images ``(N, height, width)`` to sequences ``(N, T, I)``."""
        given = self.hparams
        if (shrink := given["shrink"]) > 1:
            if any(side % shrink for side in images.shape[1:]):
                sides = " by ".join(map(str, images.shape[1:]))
                raise ValueError(f"shrink must divide the image's {sides} pixels, got {shrink}")
            images = avg_pool2d(images.unsqueeze(1), shrink).squeeze(1)
        x = images.flatten(1).unsqueeze(2) if given["step"] == "pixel" else images
        return x[:, step_order(x.shape[1], given["permutation"], given["permutation_seed"])]


class PixelClassifier(lightning.LightningModule):
    """A recurrent layer and a softmax on its last output.

    Args:
        cell: ``"LSTM"``, ``"GRU"`` or ``"RNN"``.
        norm: what is normalised: None, ``"batch"``, ``"layer"``, or a preset's name.
        norm_options: fields of :class:`rnnorm.BatchNorm` or :class:`rnnorm.LayerNorm` to change.
        hidden_size: units of the layer.
        input_size: values read at each step, 1 for a pixel.
        num_classes: classes to tell apart.
        init: name of the recipe in :mod:`rnnorm.init` without its underscore, or None for
            ``torch.nn``'s initialisation.
        initial_noise: standard deviation of the Gaussian noise on h_0 in training.
        learn_initial_state: make h_0 and c_0 parameters.

    Attributes:
        score: the metric of the best checkpoint, the accuracy.

    Raises:
        ValueError: a name is unknown.
    """

    score = Score("accuracy", "max")

    def __init__(
        self,
        cell: Literal["LSTM", "GRU", "RNN"] = "LSTM",
        norm: str | None = None,
        norm_options: dict[str, Any] | None = None,
        hidden_size: int = 100,
        input_size: int = 1,
        num_classes: int = 10,
        init: str | None = "cooijmans2016",
        initial_noise: float = 0.0,
        learn_initial_state: bool = False,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.rnn = recurrent(
            cell,
            input_size,
            hidden_size,
            norm,
            norm_options,
            learn_initial_state=learn_initial_state,
            initial_noise=initial_noise,
        )
        self.classifier = nn.Linear(hidden_size, num_classes)
        if init is not None:
            initialise(self.rnn, init, self.classifier)
        self.val_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.test_accuracy = MulticlassAccuracy(num_classes, average="micro")

    def forward(self, x: Tensor) -> Tensor:
        """Scores ``(B, num_classes)`` of sequences ``(T, B, I)``."""
        output, _ = self.rnn(x)
        scores: Tensor = self.classifier(output[-1])
        return scores

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Cross-entropy of a minibatch."""
        x, y = batch
        scores = self(x)
        loss = cross_entropy(scores, y)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(y))
        self.log("train/accuracy", (scores.argmax(1) == y).float().mean(), batch_size=len(y))
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Accuracy and cross-entropy on the validation set."""
        self._evaluate("val", self.val_accuracy, batch)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Accuracy and cross-entropy on the test set."""
        self._evaluate("test", self.test_accuracy, batch)

    def _evaluate(
        self, name: str, accuracy: MulticlassAccuracy, batch: tuple[Tensor, Tensor]
    ) -> None:
        x, y = batch
        scores = self(x)
        accuracy(scores, y)
        self.log(f"{name}/loss", cross_entropy(scores, y), batch_size=len(y))
        self.log(f"{name}/accuracy", accuracy, prog_bar=True, batch_size=len(y))
