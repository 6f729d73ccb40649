"""Let Ctrl-C and SIGTERM end a training between two steps, with a checkpoint."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from rnnorm.experiments.training import processes


class Stopped(SystemExit):
    """A signal has ended a training that can be resumed.

    Attributes:
        folder: the training's run folder.
        status: the exit status, 130 after Ctrl-C and 143 after SIGTERM.
    """

    def __init__(self, number: int, folder: Path) -> None:
        self.folder, self.status = folder, 128 + number
        super().__init__(self.status)


def signal_handlers() -> dict[int, Any]:
    """Return the handlers of Ctrl-C and SIGTERM in the main thread, without ignored signals."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # None: the handler was not set by Python
    return {n: handler for n, handler in found.items() if handler not in (signal.SIG_IGN, None)}


def restore_handlers(before: Mapping[int, Any]) -> None:
    """Restore the handlers that :func:`signal_handlers` returned."""
    for number, handler in before.items():
        signal.signal(number, handler)


class OwnHandlers(Callback):
    """Keeps the handlers of Ctrl-C and SIGTERM in a test, which Lightning would replace."""

    def __init__(self) -> None:
        self.before = signal_handlers()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the handlers that Lightning has replaced."""
        restore_handlers(self.before)


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM to the end of the with block; a second signal acts at once."""
    before, came = signal_handlers(), []

    def received(number: int, frame: FrameType | None) -> None:
        restore_handlers(before)
        came.append(number)

    for number in before:
        signal.signal(number, received)
    try:
        yield
    finally:
        restore_handlers(before)
        for number in came:
            signal.raise_signal(number)


class StopSignals(Callback):
    """Context in which Ctrl-C and SIGTERM wait for the end of a step.

    A signal ends a validation at once, and the pass over the training set before it, but not the
    logging of its score: an exception within a queue can leave the thread that reads it waiting.
    The second signal acts at once, as without this context. Signals that the process ignores
    (``nohup``) stay ignored, and outside the main thread nothing changes.

    Args:
        folder: the run folder of the training.

    Attributes:
        came: the first signal, or None; with several processes, set by :meth:`agree`.
        wait: whether signals wait before the first step too. Python's handlers do not run
            while a process waits for another machine, which may never connect.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: int | None = None
        self._held = False
        self._before: dict[int, Any] = {}
        self.came: int | None = None
        self.wait = True

    def __enter__(self) -> StopSignals:
        """Replace the handlers, or set the defaults where signals may not wait."""
        self._before = signal_handlers()
        if self.wait:
            self._listen()
        else:
            restore_handlers(dict.fromkeys(self._before, signal.SIG_DFL))
        return self

    def _listen(self) -> None:
        for number in self._before:
            signal.signal(number, self._received)

    def __exit__(self, *_: object) -> None:
        """Restore the handlers."""
        restore_handlers(self._before)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replace Lightning's handlers, with which a step could be lost."""
        self._listen()

    def on_train_batch_start(self, *_: Any) -> None:
        """Let signals wait from here on, even while data are read."""
        self._held = True

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the training if a signal waits, and let signals stop the training at once.

        Raises:
            Stopped: if a signal has come.
        """
        self._held = False
        self.check()

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let signals wait until the score is kept."""
        self._held = True

    def agree(self) -> None:
        """Share a signal among all processes, so that all end after the same step."""
        if processes.count() > 1:
            self.came = processes.max_over_all(self._waiting or 0) or None

    def check(self) -> None:
        """End the training if a signal has come.

        Raises:
            Stopped: if a signal has come.
        """
        if self.came is not None:
            raise Stopped(self.came, self._folder)

    def _received(self, number: int, frame: FrameType | None) -> None:
        self.__exit__()
        if processes.count() > 1:
            self._waiting = number
        else:
            self.came = number
            if not self._held:
                self.check()
        # the signal may interrupt a print, which is not reentrant
        os.write(2, b"\nstopping after this step; the next signal stops at once\n")
