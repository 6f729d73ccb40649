"""End a training after a signal."""

from __future__ import annotations

from pathlib import Path


class Stopped(SystemExit):
    """A signal has ended a training that can be resumed.

    Attributes:
        folder: the training's run folder.
        status: the exit status, 130 after Ctrl-C and 143 after SIGTERM.
    """

    def __init__(self, number: int, folder: Path) -> None:
        self.folder, self.status = folder, 128 + number
        super().__init__(self.status)
