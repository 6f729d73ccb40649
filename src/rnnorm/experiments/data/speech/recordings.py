"""Reader of recordings: wav files in a folder or in a tar archive."""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from rnnorm.experiments.data.tar_file import read_members
from rnnorm.experiments.files import files_below, how_to_raise, raised_limit, unpack

_Name = TypeVar("_Name", bound=PurePath)

# longest recording: some formats hold hours of silence in a few bytes
_MOST_SECONDS = 3600
# least number of bytes that SoX announces in a wav file from a pipe, more than any hour has
_PIPED = 0x7FFFF000
# formats whose header or blocks announce the length, so that truncation is found
_FORMATS = ("WAV", "WAVEX", "NIST", "FLAC")
# numbers in the header of a NIST file, such as TIMIT's
_NIST = re.compile(r"^(sample_count|sample_n_bytes|channel_count) -i (\d{1,15})\s*$", re.MULTILINE)


def read_recordings(
    path: str | Path, names: Collection[str], rate: int
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Read recordings by name, in the order in which they are found.

    Args:
        path: a folder of wav files, or a tar archive of them, compressed or not.
        names: names of the files, such as ``"0_theo_1.wav"``; case may differ, and a file may be
            in a sub-folder.
        rate: samples of a second that each must have.

    Yields:
        The name and the samples ``(N,)`` in [-1, 1].

    Raises:
        ValueError: if a file is broken, has another rate or several channels or lasts more than an
            hour, or a sample is not finite; or the archive is broken.
        FileNotFoundError: if a recording is missing.
    """
    path, wanted = Path(path), set(names)
    for name, where, data in _files(path, wanted) if path.is_dir() else _members(path, wanted):
        if name in wanted:
            wanted.remove(name)
            yield name, _samples(data, where, rate)
    if wanted:
        raise FileNotFoundError(
            f"{path} lacks {len(wanted)} of {len(names)} recordings, such as {min(wanted)}"
        )


def read_recording(path: str | Path, rate: int) -> NDArray[np.float32]:
    """Read the samples ``(N,)`` of one recording, in [-1, 1].

    Args:
        path: the file: wav, NIST sphere or FLAC. In other formats truncation could not be found.
        rate: samples of a second that the recording must have.

    Raises:
        ValueError: if the recording is one that :func:`read_recordings` would refuse.
        FileNotFoundError: if there is no such file.
    """
    return _samples(unpack(Path(path), ""), str(path), rate)


def _files(folder: Path, names: set[str]) -> Iterator[tuple[str, str, bytes]]:
    for path, name in sorted(_named(files_below(folder), names).items(), key=lambda item: item[1]):
        yield name, str(path), unpack(path, "")


def _members(path: Path, names: set[str]) -> Iterator[tuple[str, str, bytes]]:
    found: dict[PurePosixPath, str] = {}

    def choose(members: Sequence[PurePosixPath]) -> Collection[PurePosixPath]:
        found.update(_named(members, names))
        return found

    for member, data in read_members(path, choose):
        yield found[member], f"{path}/{member}", data


def _named(paths: Iterable[_Name], names: set[str]) -> dict[_Name, str]:
    """Map files to their names among ``names``; an exact match comes before another case."""
    # the file in the fewest sub-folders comes last and wins
    in_order = sorted(paths, key=lambda path: len(path.parts), reverse=True)
    exact = {path.name: path for path in in_order}
    folded = {path.name.lower(): path for path in in_order}
    found = {name: exact.get(name, folded.get(name.lower())) for name in names}
    return {path: name for name, path in found.items() if path is not None}


def _whole(data: bytes, where: str) -> bytes:
    """Return the bytes of a recording, with the missing length filled into a wav header.

    Raises:
        ValueError: if the data are shorter than announced, which libsndfile would ignore.
    """
    announced = 0
    if data[:4] in (b"RIFF", b"RIFX"):
        order: Literal["little", "big"] = "little" if data[:4] == b"RIFF" else "big"

        def size_at(byte: int) -> int:
            return int.from_bytes(data[byte : byte + 4], order)

        at, announced = 12, size_at(4) + 8
        while at + 8 <= len(data):
            size, begin = size_at(at + 4), at + 8
            if data[at : at + 4] == b"data":
                # a writer that was killed leaves a length of 0
                unfinished = size == 0 and abs(announced - len(data)) > 1
                if size >= _PIPED or unfinished:
                    sizes = (n.to_bytes(4, order) for n in (len(data) - 8, len(data) - begin))
                    return data[:4] + next(sizes) + data[8 : at + 4] + next(sizes) + data[begin:]
                # data behind the samples are ignored
                announced = begin + size
                break
            end = begin + size
            # some writers omit the byte that pads a chunk of odd size
            if size % 2 and data[end : end + 4] == b"data":
                data = data[:end] + b"\0" + data[end:]
            at = end + size % 2
    elif data[:7] == b"NIST_1A":
        # the second line is the header's size, 1024 in most files
        length = data[8:16].strip()
        begin = int(length) if length.isdigit() else 1024
        header = data[:begin].decode("ascii", "replace")
        fields = {name: int(n) for name, n in _NIST.findall(header)}
        size = fields.get("sample_count", 0) * fields.get("sample_n_bytes", 2)
        announced = begin + size * fields.get("channel_count", 1)
    if len(data) < announced:
        raise ValueError(f"{where} is truncated: it ends at byte {len(data)}, not {announced}")
    return data


def _samples(data: bytes, where: str, rate: int) -> NDArray[np.float32]:
    """Decode the samples ``(N,)`` of a recording, in [-1, 1]."""
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(_whole(data, where))) as file:
            if file.format not in _FORMATS:
                raise ValueError(f"{where} must be one of {', '.join(_FORMATS)}, got {file.format}")
            found = file.samplerate
            if file.frames > rate * (most := raised_limit(_MOST_SECONDS)):
                raise ValueError(
                    f"{where} is too large: it has {file.frames} samples, more than the limit of "
                    f"{most} seconds; {how_to_raise()}"
                )
            samples = file.read(dtype="float32", always_2d=True)
            if len(samples) < file.frames:
                raise ValueError(
                    f"{where} is truncated: it has {len(samples)} of {file.frames} samples"
                )
    except soundfile.LibsndfileError as error:
        raise ValueError(f"{where} is not a recording: {error.error_string}") from None
    if found != rate:
        raise ValueError(f"{where} must have {rate} samples a second, got {found}")
    if samples.shape[1] != 1:
        raise ValueError(f"{where} must have one channel, got {samples.shape[1]}")
    if not np.isfinite(samples).all():
        at = int(np.argmin(np.isfinite(samples[:, 0])))
        raise ValueError(f"{where} has {samples[at, 0]} at sample {at}")
    return np.asarray(samples[:, 0])
