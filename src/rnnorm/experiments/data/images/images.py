"""Image data sets, each in a fixed split for training, validation and test."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rnnorm.experiments.data.images.idx import read_idx
from rnnorm.experiments.data.images.mnist import mnist_files

#: pixels of an image's side
SIDES = {"digits": 8, "mnist": 28}


class Images(NamedTuple):
    """Grey images ``(N, height, width)`` in [0, 1], and their classes ``(N,)``."""

    x: Tensor
    y: Tensor


class Splits(NamedTuple):
    """Three disjoint parts of a data set."""

    train: Images
    val: Images
    test: Images


def load_images(dataset: Literal["digits", "mnist"], data_dir: str | Path | None = None) -> Splits:
    """Load a data set by name.

    Args:
        dataset: ``"digits"`` (scikit-learn's, 8 by 8, no download) or ``"mnist"`` (28 by 28).
        data_dir: where MNIST's files are; see ``mnist_files``.

    Returns:
        1257/270/270 images of digits, or 50,000/10,000/10,000 of MNIST.

    Raises:
        ValueError: the name is unknown, images and labels do not belong together, the files are
            not MNIST's, or ``data_dir`` is given for digits.
        FileNotFoundError: ``data_dir`` lacks a file.
    """
    if dataset == "digits":
        if data_dir is not None:
            raise ValueError(f"digits come with scikit-learn: leave --data-dir {data_dir} out")
        return _digits()
    if dataset == "mnist":
        return _mnist(data_dir)
    raise ValueError(f"dataset must be 'digits' or 'mnist', got {dataset!r}")


def _digits() -> Splits:
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.from_numpy(digits.images).float() / 16
    y = torch.from_numpy(digits.target).long()
    # neighbours are often by the same writer: mix them before they are split
    order = torch.from_numpy(np.random.RandomState(0).permutation(len(y)))
    train, val, test = order[:1257], order[1257:1527], order[1527:]
    return Splits(*(Images(x[rows], y[rows]) for rows in (train, val, test)))


def _mnist(data_dir: str | Path | None) -> Splits:
    files = mnist_files(data_dir)
    train, test = _labelled(files, "train", 60000), _labelled(files, "t10k", 10000)
    first = Images(train.x[:50000], train.y[:50000])
    return Splits(first, Images(train.x[50000:], train.y[50000:]), test)


def _labelled(files: dict[str, Path], name: str, count: int) -> Images:
    images, labels = (files[f"{name}-{kind}-ubyte.gz"] for kind in ("images-idx3", "labels-idx1"))
    x, y = read_idx(images, 3), read_idx(labels, 1)
    if len(x) != len(y):
        raise ValueError(f"{images} has {len(x)} images, {labels} has {len(y)} labels")
    if len(y) != count:
        raise ValueError(f"{labels} has {len(y)} labels, MNIST has {count}")
    if x.shape[1:] != (28, 28):
        sides = " by ".join(map(str, x.shape[1:]))
        raise ValueError(f"{images} has images of {sides} pixels, MNIST's are 28 by 28")
    if y.max() > 9:
        at = int(np.argmax(y > 9))
        raise ValueError(f"{labels} has the label {y[at]} at byte {8 + at} unpacked, not 0 to 9")
    return Images(
        torch.from_numpy(x.astype(np.float32) / 255), torch.from_numpy(y.astype(np.int64))
    )
