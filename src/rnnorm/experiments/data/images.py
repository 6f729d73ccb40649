"""Image data sets, each in a fixed split, and readers of MNIST's files."""

from __future__ import annotations

import logging
from math import prod
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rnnorm.experiments.console import check_choice
from rnnorm.experiments.files import BrokenFileError, file_exists, unpack, users_folder

ImageDataset = Literal["digits", "mnist"]
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


def load_images(dataset: ImageDataset, data_dir: str | Path | None = None) -> Splits:
    """Load a data set by name.

    Args:
        dataset: ``"digits"`` (scikit-learn's, 8 by 8, no download) or ``"mnist"`` (28 by 28).
        data_dir: folder of MNIST's files; see :func:`mnist_files`.

    Returns:
        1257/270/270 images of digits, or 50,000/10,000/10,000 of MNIST.

    Raises:
        ValueError: if the name is unknown, images and labels do not belong together, the files are
            not MNIST's, or ``data_dir`` is given for digits.
        FileNotFoundError: if ``data_dir`` lacks a file.
    """
    check_choice(ImageDataset, dataset=dataset)
    if dataset == "digits":
        if data_dir is not None:
            raise ValueError(f"digits come with scikit-learn: leave --data-dir {data_dir} out")
        return _digits()
    return _mnist(data_dir)


def _digits() -> Splits:
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.from_numpy(digits.images).float() / 16
    y = torch.from_numpy(digits.target).long()
    # neighbouring digits are often by the same writer: shuffle before the split
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


# largest unpacked idx file in bytes; MNIST's training images have 47 million
_LIMIT = 1 << 26


def read_idx(path: str | Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an array of unsigned bytes from an idx file, gzipped or not.

    Args:
        path: the file, for example ``train-images-idx3-ubyte.gz``.
        dimensions: the number of dimensions it must have, 3 for images and 1 for labels.

    Returns:
        The array, of the shape in the file's header.

    Raises:
        BrokenFileError: if the file is empty, truncated, corrupted, too large, or not idx data of
            unsigned bytes with that many dimensions.
        FileNotFoundError: if there is no such file.
    """
    data = unpack(Path(path), limit=_LIMIT)
    magic, expected = data[:4], bytes((0, 0, 8, dimensions))
    if magic != expected:
        raise BrokenFileError(
            f"{path} is not idx data of unsigned bytes in {dimensions} dimensions: unpacked, it "
            f"has {magic.hex(' ') or 'nothing'} at byte 0, not {expected.hex(' ')}"
        )
    begin = 4 + 4 * dimensions
    if len(data) < begin:
        raise BrokenFileError(f"{path} is truncated: unpacked, its header ends at byte {len(data)}")
    shape = tuple(np.frombuffer(data[4:begin], ">u4").tolist())
    if len(data) != (end := begin + prod(shape)):
        raise BrokenFileError(
            f"{path} is {'truncated' if len(data) < end else 'oversized'}: unpacked, it ends at "
            f"byte {len(data)}, not at {end} as its header announces"
        )
    return np.frombuffer(data, np.uint8)[begin:].reshape(shape)


# the address that torchvision downloads from
ADDRESS = "https://ossci-datasets.s3.amazonaws.com/mnist/"

SHA256 = {
    "train-images-idx3-ubyte.gz": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    ),
    "train-labels-idx1-ubyte.gz": (
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
    ),
    "t10k-images-idx3-ubyte.gz": (
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
    ),
}
# folders that may hold the files, torchvision's among them; an error names the first two
_SUB_FOLDERS = (".", "mnist", "MNIST", "raw", "MNIST/raw", "mnist/raw")


def mnist_files(data_dir: str | Path | None = None) -> dict[str, Path]:
    """Find the four idx-gz files of MNIST, or download them.

    Args:
        data_dir: a folder that holds them, itself or in a sub-folder ``mnist``, or as torchvision
            keeps them in ``MNIST/raw``; unpacked or not, also by Kaggle's names
            (``train-images.idx3-ubyte``). Without it they are downloaded once into the user's cache
            and checked by sha256.

    Returns:
        The path of each file by its published name.

    Raises:
        FileNotFoundError: if ``data_dir`` lacks one of the files.
        RuntimeError: if the download failed.
    """
    if data_dir is None:
        return _download()
    folder = users_folder(data_dir, "MNIST's four files")
    lacking = {}
    for inner in _SUB_FOLDERS:
        found = {name: _find(folder / inner, name) for name in SHA256}
        files = {name: path for name, path in found.items() if path is not None}
        if len(files) == len(SHA256):
            return files
        lacking[folder / inner] = [name for name in SHA256 if name not in files]
    first_two = list(lacking.items())[:2]
    what = " and ".join(f"{each} lacks {', '.join(names)}" for each, names in first_two)
    raise FileNotFoundError(
        f"{what}: download them from {ADDRESS} into one of these folders, or leave --data-dir out "
        "and they are downloaded for you"
    )


def _find(folder: Path, name: str) -> Path | None:
    plain = name.removesuffix(".gz")
    names = [name, plain, plain.replace("-idx", ".idx"), name.replace("-idx", ".idx")]
    # some programs unpack a file into a folder of the same name
    paths = [folder / inner / each for inner in (".", *names) for each in names]
    return next((path for path in paths if file_exists(path)), None)


def _download() -> dict[str, Path]:
    import pooch

    folder = Path(pooch.os_cache("rnnorm")) / "mnist"
    pooch.get_logger().setLevel(logging.WARNING)
    files = {}
    for name, sha256 in SHA256.items():
        if not (folder / name).exists():
            print(f"downloading {ADDRESS}{name} into {folder}", flush=True)
        try:
            files[name] = Path(pooch.retrieve(ADDRESS + name, f"sha256:{sha256}", name, folder))
        except Exception as error:
            raise RuntimeError(
                f"could not download {ADDRESS}{name}: {error}; put {', '.join(SHA256)} into a "
                "folder and name it with --data-dir"
            ) from error
    return files
