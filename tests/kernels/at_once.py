"""Whether the steps of a call are one launch; interpreted, its programs at once, a thread each."""

import inspect
import sys
import threading
import time
from functools import partial

from gpu_or_interpreter import INTERPRETED
from triton.runtime import interpreter

from rnnorm.kernels.triton.plan import Plan

_own = threading.local()
# what hangs is to fail
_PATIENCE_S = 300


def loop(monkeypatch, looped):
    """Has all steps but the first in one launch, or each in its own."""
    monkeypatch.setattr(Plan, "_looped", lambda plan, back: looped)
    if not (looped and INTERPRETED):
        return
    former = interpreter.GridExecutor.__call__

    def call(executor, *args, **kwargs):
        together = executor.fn.__module__ == "rnnorm.kernels.triton.loop"
        (_launch if together else former)(executor, *args, **kwargs)

    index = property(lambda _: _own.index, lambda _, value: setattr(_own, "index", value))
    monkeypatch.setattr(type(interpreter.interpreter_builder), "grid_idx", index, raising=False)
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", call)


def _launch(executor, *args, **kwargs):
    """As ``GridExecutor.__call__``, which runs one program after another."""
    names = inspect.getfullargspec(executor.fn).args
    given = {name: value for name, value in kwargs.items() if name in names}
    scope = interpreter._patch_lang(executor.fn)
    failed = []

    def program(arguments, place):
        try:
            interpreter.interpreter_builder.set_grid_idx(place, 0, 0)
            executor.fn(**arguments)
        except BaseException as error:
            failed.append(error)

    # while one waits another is to go on
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        arguments = {
            name: value if name in executor.constexprs else interpreter._implicit_cvt(value)
            for name, value in inspect.getcallargs(executor.fn, *args, **given).items()
        }
        interpreter.interpreter_builder.set_grid_dim(*executor.grid, 1, 1)
        threads = [
            threading.Thread(target=partial(program, arguments, place), daemon=True)
            for place in range(executor.grid[0])
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + _PATIENCE_S
        while not failed and any(thread.is_alive() for thread in threads):
            assert time.monotonic() < deadline, "programs wait for ever"
            time.sleep(0.01)
        if failed:
            raise failed[0]
    finally:
        sys.setswitchinterval(interval)
        scope.restore()
