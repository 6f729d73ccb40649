"""Reader of recordings: wav files in a folder or in a tar archive."""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rnnorm.experiments.data.tar_file import read_members
from rnnorm.experiments.data.whole_file import unpack

# of a recording: some formats hold hours of silence in a few bytes
_MOST_SECONDS = 3600
# formats that announce how long they are, or whose blocks do
_FORMATS = ("WAV", "WAVEX", "NIST", "FLAC")
# a number in the header of a NIST file, such as TIMIT's
_NIST = re.compile(r"^(sample_count|sample_n_bytes|channel_count) -i (\d{1,15})\s*$", re.MULTILINE)


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
        ValueError: a file is broken, has another rate or several channels or lasts more than an
            hour, or a sample is not finite; or the archive is broken.
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


def read_recording(path: str | Path, rate: int) -> NDArray[np.float32]:
    """Samples ``(N,)`` of one recording, in [-1, 1].

    Args:
        path: the file: wav, NIST sphere or FLAC. Of another format it could not be told whether
            the file was cut short.
        rate: samples of a second that it must have.

    Raises:
        ValueError: as :func:`read_recordings`.
        FileNotFoundError: there is no such file.
    """
    return _samples(unpack(Path(path), ""), str(path), rate)


def _files(folder: Path, names: set[str]) -> Iterator[tuple[str, bytes]]:
    for name in sorted(names):
        if (folder / name).is_file():
            yield name, unpack(folder / name, "")


def _members(path: Path, names: set[str]) -> Iterator[tuple[str, bytes]]:
    def choose(members: Sequence[PurePosixPath]) -> set[PurePosixPath]:
        return {member for member in members if member.name in names}

    return ((member.name, data) for member, data in read_members(path, choose))


def _announced(data: bytes) -> int:
    """How many bytes a wav or NIST file says that it has; 0 if it does not."""
    if data[:4] in (b"RIFF", b"RIFX"):
        order: Literal["little", "big"] = "little" if data[:4] == b"RIFF" else "big"

        def size_at(byte: int) -> int:
            size = int.from_bytes(data[byte : byte + 4], order)
            # all ones where it was written into a pipe
            return size if size < 2**32 - 1 else 0

        at, end = 12, size_at(4) + 8
        # the first number is 0 where the recorder was killed
        while at + 8 <= len(data):
            size = size_at(at + 4)
            if data[at : at + 4] == b"data":
                return max(end, at + 8 + size)
            at += 8 + size + size % 2
        return end
    if data[:7] == b"NIST_1A":
        header = data[:1024].decode("ascii", "replace")
        fields = {name: int(n) for name, n in _NIST.findall(header)}
        size = fields.get("sample_count", 0) * fields.get("sample_n_bytes", 2)
        return 1024 + size * fields.get("channel_count", 1)
    return 0


def _samples(data: bytes, where: str, rate: int) -> NDArray[np.float32]:
    import soundfile

    # libsndfile takes what there is of a file that was cut short
    announced = _announced(data)
    if len(data) < announced:
        raise ValueError(f"{where} is truncated: it ends at byte {len(data)}, not {announced}")
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if file.format not in _FORMATS:
                raise ValueError(f"{where} must be one of {', '.join(_FORMATS)}, got {file.format}")
            found = file.samplerate
            if file.frames > _MOST_SECONDS * rate:
                raise ValueError(
                    f"{where} is too large: it has {file.frames} samples, more than the limit of "
                    f"{_MOST_SECONDS} seconds"
                )
            samples = file.read(dtype="float32", always_2d=True)
            if len(samples) < file.frames:
                raise ValueError(
                    f"{where} is truncated: it has {len(samples)} of {file.frames} samples"
                )
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
