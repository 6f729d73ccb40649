"""Ctrl-C and SIGTERM end a training between two steps, with a checkpoint."""

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
from rnnorm.experiments.training.stopped import Stopped


def signal_handlers() -> dict[int, Any]:
    """Those of Ctrl-C and SIGTERM, in the main thread and where these are not ignored."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # None: the handler is none of Python's
    return {n: handler for n, handler in found.items() if handler not in (signal.SIG_IGN, None)}


def restore_handlers(before: Mapping[int, Any]) -> None:
    """Let what :func:`handlers` found handle the signals again."""
    for number, handler in before.items():
        signal.signal(number, handler)


class OwnHandlers(Callback):
    """Keeps Ctrl-C and SIGTERM, in a test, what they were before it: Lightning has its own."""

    def __init__(self) -> None:
        self.before = signal_handlers()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning has put its handlers there."""
        restore_handlers(self.before)


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Lets Ctrl-C and SIGTERM wait for the end of what is within; a second one does not."""
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
    """While it is entered, Ctrl-C and SIGTERM wait for the end of a step.

    They end a validation at once, and the pass over the training set before it, but not what logs
    its score: an exception within a queue can leave the thread that reads it waiting. The second
    signal does what it would have done without this, at once. Signals that the process ignores
    (``nohup``) stay ignored, and outside the main thread nothing changes.

    Args:
        folder: the run folder of the training.

    Attributes:
        came: the first signal, or None. In one of several processes, after the next
            :meth:`agree`.
        wait: whether signals wait before the first step too. Another machine may never come, and
            the process hears no handler of Python while it waits for it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: int | None = None
        self._held = False
        self._before: dict[int, Any] = {}
        self.came: int | None = None
        self.wait = True

    def __enter__(self) -> StopSignals:
        """Take the place of the handlers."""
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
        """Put the handlers back."""
        restore_handlers(self._before)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the place of lightning's handlers, which let a step be lost."""
        self._listen()

    def on_train_batch_start(self, *_: Any) -> None:
        """From here on a signal waits, even while data are read."""
        self._held = True

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on it does not, and one that waits has its way.

        Raises:
            Stopped: one has come.
        """
        self._held = False
        self.check()

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on a signal waits until the score is kept."""
        self._held = True

    def agree(self) -> None:
        """Learn of a signal that any of several processes has got: all end after the same step."""
        if processes.count() > 1:
            self.came = processes.max_over_all(self._waiting or 0) or None

    def check(self) -> None:
        """End the training if a signal has come.

        Raises:
            Stopped: one has.
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
        # not print: the signal may have come in the middle of one
        os.write(2, b"\nstopping after this step; the next signal stops at once\n")
