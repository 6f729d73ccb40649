"""Sequential image classification: an image is read one pixel or one row a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from rnnorm.experiments.console import check_at_least, check_choice
from rnnorm.experiments.data.batches import Batches
from rnnorm.experiments.data.images import SIDES, ImageDataset, Images, Splits, load_images
from rnnorm.experiments.data.loaded_data import LoadedData
from rnnorm.experiments.models.classifiers import SequenceClassifier

Permutation = Literal["none", "fixed", "published"]


def step_order(steps: int, permutation: Permutation, seed: int) -> Tensor:
    """Choose the pixel or row of the image that is read at each step.

    Args:
        steps: the number of steps.
        permutation: ``"none"`` for the image's own order, ``"fixed"`` for one random order of all
            steps, ``"published"`` for the draw with replacement of the code that Cooijmans et al.
            released: about 36 % of the pixels are never read, others more than once. With 784
            steps and seed 1 it is exactly their draw.
        seed: seed of the random order.

    Returns:
        Indices ``(steps,)``.

    Raises:
        ValueError: if ``permutation`` is unknown.
    """
    check_choice(Permutation, permutation=permutation)
    if permutation == "none":
        return torch.arange(steps)
    if permutation == "fixed":
        return torch.from_numpy(np.random.RandomState(seed).permutation(steps))
    return torch.from_numpy(np.random.RandomState(seed).randint(0, steps, size=steps))


class PixelData(LoadedData):
    """Images as sequences, in minibatches ``(x, y)`` of shapes ``(T, B, I)`` and ``(B,)``.

    Args:
        dataset: ``"digits"`` (64 pixels, comes with scikit-learn) or ``"mnist"`` (784 pixels).
        step: unit that is read at each step, a ``"pixel"`` or a ``"row"``.
        permutation: the order of the steps, see :func:`step_order`.
        permutation_seed: seed of that order.
        shrink: average squares of ``shrink`` by ``shrink`` pixels first.
        train_size: keep only this many training images.
        **shared: arguments of :class:`rnnorm.experiments.data.loaded_data.LoadedData`; ``data_dir``
            is the folder of MNIST's four idx-gz files, which are downloaded without it.

    Raises:
        ValueError: if an argument is out of its range.

    Attributes:
        num_features: values of a step, once the data are loaded.
    """

    #: the digits
    num_classes = 10
    num_features: int

    def __init__(
        self,
        dataset: ImageDataset = "digits",
        step: Literal["pixel", "row"] = "pixel",
        permutation: Permutation = "none",
        permutation_seed: int = 1,
        shrink: int = 1,
        train_size: int | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        check_at_least(1, shrink=shrink)
        if not 0 <= permutation_seed < 2**32:
            raise ValueError(
                f"permutation_seed must be from 0 to {2**32 - 1}, got {permutation_seed}"
            )

    def load(self) -> dict[str, Batches]:
        """Load the images and order their steps.

        Raises:
            ValueError: if ``shrink`` does not divide the image, or there are fewer than
                ``train_size`` training images.
            FileNotFoundError: if ``data_dir`` lacks a file.
        """
        given = self.hparams
        splits = load_images(given["dataset"], given["data_dir"])
        size, most = given["train_size"], len(splits.train.y)
        if size is not None:
            if size > most:
                raise ValueError(
                    f"train_size must be 1 to {most} for {given['dataset']}, got {size}"
                )
            splits = Splits(Images(splits.train.x[:size], splits.train.y[:size]), *splits[1:])
        parts = {
            part: Batches(self._sequences(images.x), images.y, *self.rows_and_seed(part))
            for part, images in splits._asdict().items()
        }
        self.num_features = parts["train"].x.shape[2]
        return parts

    def preprocessing(self, kept: Mapping[str, Any]) -> dict[str, Any]:
        """Describe the range of the values and the order of the steps."""
        given = self.hparams
        side = SIDES[given["dataset"]] // given["shrink"]
        steps = side if given["step"] == "row" else side**2
        order = step_order(steps, given["permutation"], given["permutation_seed"])
        return {
            "image": [SIDES[given["dataset"]]] * 2,
            "values": [0, 1],
            "average_squares_of": given["shrink"],
            "step": given["step"],
            "order": order.tolist(),
        }

    def _sequences(self, images: Tensor) -> Tensor:
        """Turn images ``(N, height, width)`` into sequences ``(N, T, I)``."""
        given = self.hparams
        if (shrink := given["shrink"]) > 1:
            if any(side % shrink for side in images.shape[1:]):
                sides = " by ".join(map(str, images.shape[1:]))
                raise ValueError(f"shrink must divide the image's {sides} pixels, got {shrink}")
            images = avg_pool2d(images.unsqueeze(1), shrink).squeeze(1)
        x = images.flatten(1).unsqueeze(2) if given["step"] == "pixel" else images
        return x[:, step_order(x.shape[1], given["permutation"], given["permutation_seed"])]


class PixelClassifier(SequenceClassifier):
    """A classifier of images; ``input_size`` is 1 for a pixel a step."""

    def check_data(self, data: PixelData) -> None:
        """Check that steps and classes fit the model.

        Raises:
            ValueError: if the data need another ``input_size`` or ``num_classes``.
        """
        given = data.hparams
        self.expect_size("input_size", data.num_features, f"the values of a {given['step']}")
        self.expect_size("num_classes", data.num_classes, f"the classes of {given['dataset']}")
