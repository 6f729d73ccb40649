"""Reader of idx files, gzipped or not, the format of MNIST."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rnnorm.experiments.data.whole_file import BrokenFileError, unpack

# MNIST's training images have 47 million bytes
_LIMIT = 1 << 26


def read_idx(path: str | Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an array of unsigned bytes from an idx file, gzipped or not.

    Args:
        path: the file, for example ``train-images-idx3-ubyte.gz``.
        dimensions: the number of dimensions it must have, 3 for images and 1 for labels.

    Returns:
        The array, of the shape in the file's header.

    Raises:
        BrokenFileError: the file is empty, truncated, corrupted, too large, or not idx data of
            unsigned bytes with that many dimensions.
        FileNotFoundError: there is no such file.
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
