"""Reader of plain or compressed tar archives, which unpacks nothing to the disk."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath

from rnnorm.experiments.files import BrokenFileError, added_by_system, check_size, unpack

# errors that tarfile raises for a broken header; only the first kind is its own
_BROKEN = (tarfile.TarError, ValueError, LookupError, OverflowError, RecursionError)


def read_members(
    path: Path, choose: Callable[[Sequence[PurePosixPath]], Collection[PurePosixPath]]
) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Read some files of an archive, in the archive's order.

    Args:
        path: the archive; its first bytes tell whether it is compressed by gzip or xz.
        choose: selects the names to read, out of all members but those that systems add.

    Yields:
        A file's name and its bytes.

    Raises:
        BrokenFileError: if the archive is truncated, corrupted or too large, or a selected
            member is not a file but, say, a link.
        FileNotFoundError: if there is no such archive.
    """
    # unpack all before a member is read, since the checksum comes last
    data = unpack(path)
    try:
        archive = tarfile.TarFile(fileobj=io.BytesIO(data), encoding="utf-8", errors="replace")
        members = list(_forwards(archive))
    except _BROKEN as error:
        raise BrokenFileError(f"{path} is truncated or no tar archive: {error}") from None
    if data[archive.offset : archive.offset + tarfile.BLOCKSIZE].strip(b"\0"):
        raise BrokenFileError(
            f"{path} is corrupted: no header of a member at byte {archive.offset}"
        )
    named = [(PurePosixPath(member.name), member) for member in members]
    named = [(name, member) for name, member in named if not added_by_system(name)]
    chosen = choose([name for name, _ in named])
    size = 0
    for name, member in named:
        if name in chosen:
            # a sparse member may be far larger than its share of the archive
            size += member.size
            check_size(size, f"{path}, unpacked up to {name},")
            yield name, _read(archive, member, path)


def _forwards(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members; refuse a negative size, which would lead back to an earlier member."""
    before = -1
    for member in archive:
        if archive.offset <= before or member.size < 0:
            raise tarfile.ReadError(f"a member at byte {member.offset} has a negative size")
        before = archive.offset
        yield member


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bytes:
    """Read the bytes of a member, which must be a file."""
    file = archive.extractfile(member) if member.isfile() else None
    if file is None:
        raise BrokenFileError(f"{path}, {member.name} is a link or a folder, not a file")
    try:
        return file.read()
    except _BROKEN as error:
        raise BrokenFileError(
            f"{path} is truncated: {member.name}, at byte {member.offset}: {error}"
        ) from None
