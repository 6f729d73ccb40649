"""Reader of gzipped idx files, the format of MNIST."""

from __future__ import annotations

import io
import zlib
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from rnnorm.experiments.data.text_file import check_size

_CHUNK = 1 << 16
# deflate cannot shrink data by more than this factor
_LARGEST_RATIO = 1032


class IdxError(ValueError):
    """A file is not a whole gzipped idx file; the message names the file and the byte."""


class _Unpacker:
    """Unpacks one gzip member, at most as many bytes as are asked for."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._gzip = zlib.decompressobj(wbits=31)
        self._waiting = b""
        self.offset = 0

    def _where(self) -> int:
        """Byte of the compressed file up to which it was understood."""
        return self._file.tell() - len(self._waiting)

    def read(self, size: int) -> bytes:
        """The next ``size`` unpacked bytes, fewer only at the end of the gzip member."""
        parts, missing = [], size
        while missing and not self._gzip.eof:
            data = self._waiting or self._file.read(_CHUNK)
            if not data:
                raise IdxError(
                    f"{self._path} is truncated: it ends at byte {self._file.tell()}, "
                    "in the middle of its gzip data"
                )
            try:
                part = self._gzip.decompress(data, missing)
            except zlib.error as error:
                raise IdxError(
                    f"{self._path} is corrupted: {error}, in the {len(data)} bytes that end at "
                    f"byte {self._file.tell()}"
                ) from None
            self._waiting = self._gzip.unconsumed_tail
            parts.append(part)
            missing -= len(part)
        self.offset += size - missing
        return b"".join(parts)

    def finish(self) -> None:
        """Check that nothing follows, neither inside the gzip member nor after it."""
        if self.read(1):
            raise IdxError(
                f"{self._path} is oversized: unpacked, it goes on at byte {self.offset - 1}, "
                "after the last value that its header announces"
            )
        left = len(self._gzip.unused_data) - self._file.tell() + self._file.seek(0, io.SEEK_END)
        if left:
            raise IdxError(
                f"{self._path} is oversized: {left} bytes follow the end of its gzip data at "
                f"byte {self._file.tell() - left}"
            )


def read_idx(path: str | Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an array of unsigned bytes from a gzipped idx file.

    Args:
        path: the file, for example ``train-images-idx3-ubyte.gz``.
        dimensions: the number of dimensions it must have, 3 for images and 1 for labels.

    Returns:
        The array, of the shape in the file's header.

    Raises:
        IdxError: the file is empty, truncated, corrupted, oversized, or not idx data of unsigned
            bytes with that many dimensions.
        TextError: the array is larger than what is held in memory.
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    packed_size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(2)
        if not start:
            raise IdxError(f"{path} is empty: no gzip data at byte 0")
        if start != b"\x1f\x8b":
            raise IdxError(f"{path} is not gzip: it has {start.hex(' ')} at byte 0, not 1f 8b")
        file.seek(0)
        unpacker = _Unpacker(path, file)
        magic = unpacker.read(4)
        expected = bytes((0, 0, 8, dimensions))
        if magic != expected:
            raise IdxError(
                f"{path} is not idx data of unsigned bytes in {dimensions} dimensions: unpacked, "
                f"it has {magic.hex(' ') or 'nothing'} at byte 0, not {expected.hex(' ')}"
            )
        header = unpacker.read(4 * dimensions)
        if len(header) < 4 * dimensions:
            raise IdxError(f"{path} is truncated: unpacked, it ends at byte {unpacker.offset}")
        shape = tuple(np.frombuffer(header, ">u4").tolist())
        size = prod(shape)
        if size > packed_size * _LARGEST_RATIO:
            raise IdxError(
                f"{path} is truncated or oversized: its header at byte 4 announces {size} values, "
                f"more than its {packed_size} compressed bytes can hold"
            )
        check_size(size, f"{path}, as its header at byte 4 announces,")
        data = unpacker.read(size)
        if len(data) < size:
            raise IdxError(
                f"{path} is truncated: unpacked, it ends at byte {unpacker.offset}, "
                f"{size - len(data)} values before the end that its header announces"
            )
        unpacker.finish()
    return np.frombuffer(data, np.uint8).reshape(shape)
