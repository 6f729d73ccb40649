"""A journal that several processes append to: a JSON object a line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from optuna.storages.journal import JournalFileSymlinkLock

from rnnorm.experiments.data.whole_file import check_size, refuse_special

# as optuna begins each
_START = b'{"op_code":'


def check_journal(path: Path) -> tuple[int, int] | None:
    """Refuse what is no journal, before optuna appends to it.

    Returns:
        Number and first byte of the last line if it is unfinished; optuna skips such a line.

    Raises:
        ValueError: a line is none of a journal.
    """
    begins = 0
    check_size(refuse_special(path), path)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                if line.startswith(_START) or (number > 1 and _START.startswith(line)):
                    return number, begins
            elif _is_entry(line):
                begins += len(line)
                continue
            raise ValueError(
                f"line {number}, from byte {begins} on, is no JSON object with op_code: "
                f"{line[:40]!r}"
            )
    return None


def _is_entry(line: bytes) -> bool:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(entry, dict) and "op_code" in entry


def cut_unfinished(path: Path) -> None:
    """Cut off a last line that a process was killed in, lest the next one be appended to it.

    Raises:
        ValueError: a line is none of a journal.
    """
    if check_journal(path) is None:
        return
    # whoever writes holds the lock: what is unfinished now is left by one that has died
    lock = JournalFileSymlinkLock(str(path))
    lock.acquire()
    try:
        if (unfinished := check_journal(path)) is not None:
            number, begins = unfinished
            os.truncate(path, begins)
            print(
                f"{path} ended within line {number}, which is cut off: a process was killed while "
                "it wrote, or the disk was full",
                file=sys.stderr,
                flush=True,
            )
    finally:
        lock.release()
