"""Reader of Kaldi's script files: where in which archive the matrix of an utterance stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from rnnorm.experiments.data.text_file import placed_lines
from rnnorm.experiments.data.whole_file import is_there, refuse_special

#: bytes of an utterance's name
LONGEST_NAME = 4096
_OFFSET = re.compile("[0-9]{1,18}")


class Place(NamedTuple):
    """Where a matrix begins.

    Attributes:
        path: the file.
        offset: byte of it, unpacked if it is compressed.
        data: the whole unpacked file if it is compressed, else None.
    """

    path: Path
    offset: int
    data: bytes | None = None

    def __str__(self) -> str:
        unpacked = "" if self.data is None else " unpacked"
        return f"{self.path} at byte {self.offset}{unpacked}"


def read_scp(path: str | Path) -> dict[str, Place]:
    """Read a script file (``feats.scp``) of lines ``utterance archive:offset``.

    A relative archive is looked for in the folder of the script file, then in the working
    directory. No command is run: a line that ends with ``|`` is refused.

    Args:
        path: the script file.

    Returns:
        The place of each utterance's matrix.

    Raises:
        ValueError: a line is a command, names a range of rows, no archive or an offset that is no
            number, or an utterance stands twice; the message names the file and the line.
        FileNotFoundError: there is no such file, or it names an archive that does not exist.
    """
    path = Path(path)
    places: dict[str, Place] = {}
    archives: dict[str, Path] = {}
    for where, line in placed_lines(path):
        fields = split_fields(line, 1)
        if len(fields) < 2:
            raise ValueError(f"{where} must be an utterance and its archive, got {line[:80]!r}")
        name, value = fields
        if "|" in (value[0], value[-1]):
            raise ValueError(
                f"{where} is a command, and none is run: {value[:80]!r}. Write its output to an "
                "archive with copy-feats, and name that"
            )
        if value.endswith("]"):
            raise ValueError(f"{where} names a range of rows, which is not read: {value[-80:]!r}")
        archive, colon, offset = value.rpartition(":")
        if not colon:
            archive, offset = value, "0"
        elif not _OFFSET.fullmatch(offset):
            raise ValueError(f"{where} has the offset {offset[:80]!r}, which is no number of bytes")
        if name in places:
            raise ValueError(f"{where} names utterance {name!r} a second time")
        if archive not in archives:
            archives[archive] = _find(archive, path, where)
        places[name] = Place(archives[archive], int(offset))
    return places


def split_fields(line: str, most: int = -1) -> list[str]:
    """What has spaces or tabs between; as in Kaldi, a name may hold spaces that ASCII has not."""
    return [field.decode() for field in line.encode().strip().split(maxsplit=most)]


def _find(archive: str, scp: Path, where: str) -> Path:
    for path in (scp.parent / archive, Path(archive)):
        if is_there(path):
            refuse_special(path)
            return path
    raise FileNotFoundError(
        f"{where} names {archive}, which is neither in {scp.parent} nor in the working directory"
    )
