"""Processes that work on a study for the one that started them."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess

from rnnorm.experiments.training.stopping import handlers

# seconds that workers have to end by themselves: ``timeout`` and schedulers send a SIGTERM to them
# too, and after a second one they would not write the checkpoint of their step
_GRACE = 5.0


def run_workers(processes: Sequence[BaseProcess]) -> bool:
    """Start processes and wait for their ends; a SIGTERM is passed on to them.

    Ctrl-C reaches them by itself, as it does all processes of a terminal.

    Returns:
        Whether a SIGTERM has come.
    """
    came: list[float] = []

    def received(*_: object) -> None:
        came.append(time.monotonic())

    before = handlers().get(signal.SIGTERM)
    if before is not None:
        signal.signal(signal.SIGTERM, received)
    try:
        for process in processes:
            process.start()
        passed_on = 0
        while any(process.is_alive() for process in processes):
            time.sleep(0.2)
            # a second one at once
            if len(came) > max(passed_on, 1) or (
                len(came) > passed_on and time.monotonic() - came[0] > _GRACE
            ):
                passed_on = len(came)
                for process in processes:
                    process.terminate()
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
    return bool(came)
