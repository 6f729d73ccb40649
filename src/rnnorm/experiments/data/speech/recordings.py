"""Reader of recordings: wav files in a folder or in a tar archive."""

from __future__ import annotations

import io
import lzma
import tarfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray


def read_recordings(
    path: str | Path, names: Collection[str], rate: int
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Read the recordings of these names, in the order in which they are found.

    Args:
        path: a folder of wav files, or a tar archive of them, compressed or not.
        names: of the files, such as ``"0_theo_1.wav"``.
        rate: samples of a second that each must have.

    Yields:
        The name and the samples ``(N,)`` in [-1, 1].

    Raises:
        ValueError: a file is broken, has another rate or several channels, or a sample is not
            finite; or the archive is.
        FileNotFoundError: one is missing.
    """
    path, wanted = Path(path), set(names)
    for name, data in _files(path, wanted) if path.is_dir() else _members(path, wanted):
        if name in wanted:
            wanted.remove(name)
            yield name, _samples(data, f"{path}/{name}", rate)
    if wanted:
        raise FileNotFoundError(
            f"{path} lacks {len(wanted)} of {len(names)} recordings, such as {min(wanted)}"
        )


def _files(folder: Path, names: set[str]) -> Iterator[tuple[str, bytes]]:
    for name in sorted(names):
        if (folder / name).is_file():
            yield name, (folder / name).read_bytes()


def _members(path: Path, names: set[str]) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if member.isfile() and name in names and (file := archive.extractfile(member)):
                    yield name, file.read()
    except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{path} is truncated or no tar archive: {error}") from None


def _samples(data: bytes, where: str, rate: int) -> NDArray[np.float32]:
    import soundfile

    # libsndfile takes what there is of a file that was cut short
    announced = int.from_bytes(data[4:8], "little") + 8
    if data[:4] == b"RIFF" and len(data) < announced:
        raise ValueError(f"{where} is truncated: it ends at byte {len(data)}, not {announced}")
    try:
        samples, found = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise ValueError(f"{where} is no recording: {error}") from None
    if found != rate:
        raise ValueError(f"{where} must have {rate} samples a second, got {found}")
    if samples.shape[1] != 1:
        raise ValueError(f"{where} must have one channel, got {samples.shape[1]}")
    if not np.isfinite(samples).all():
        at = int(np.argmin(np.isfinite(samples[:, 0])))
        raise ValueError(f"{where} has {samples[at, 0]} at sample {at}")
    return np.asarray(samples[:, 0])
