"""Compilation of a user's cell by the C++ compiler of the machine, and a cache on disk."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from rnnorm.kernels import cpu
from rnnorm.kernels.cpu import library
from rnnorm.kernels.cpu.compiled_files import cached, digest, distrusted, locked
from rnnorm.kernels.run_time_compilation import (
    FOLDER,
    cache_folder,
    first_errors,
    make_private,
    switched_off,
)

#: environment variable: seconds after which a compilation is given up
TIMEOUT = "RNNORM_COMPILE_TIMEOUT"

# a change of a cached file's name or meaning needs another number
_FORMAT = 1
_SECONDS = 300.0
_PASSES = ("forward", "backward")

_log = logging.getLogger("rnnorm")


class CompilationError(RuntimeError):
    """Raised where a cell is not compiled, with the reason."""


class _EmptiedError(CompilationError):
    """Raised where the cache was deleted while a cell was compiled into it."""


def unavailable() -> str:
    """Say why no cell can be compiled on this machine, empty if one can."""
    if why := switched_off():
        return why
    if sys.platform == "win32":
        return "users' cells are not compiled on Windows"
    if library.PATH is None:
        return library.UNAVAILABLE
    try:
        _sources()
        _compiler()
    except CompilationError as error:
        return str(error)
    return ""


def compile(header: str, numbers: str, name: str) -> Path:
    """Return the path of a cell's compiled passes, from the cache on disk or else compiled.

    Args:
        header: text of ``own.h``, which defines ``rnnorm::Own``.
        numbers: the type of all numbers, ``"float"`` or ``"double"``, or ``"bfloat16"`` if x and
            the matrices are of bfloat16 and all others are floats.
        name: name of the cell, for messages.

    Raises:
        CompilationError: if there is no compiler, the compiler fails or takes too long, the cache
            is not this user's alone or cannot be written, or the process was forked.
        ValueError: if RNNORM_COMPILE_TIMEOUT is not a number of seconds.
    """
    if why := unavailable():
        raise CompilationError(why)
    folder, options = _sources()
    # all but the products of these passes is computed in floats
    narrow = numbers == "bfloat16"
    build = f"{library.isa()}:bfloat16" if narrow else library.isa()
    command = [*_compiler(), *options["all"], *options[build]]
    version = _version(command[0], os.stat(command[0]).st_mtime_ns)
    described = [_FORMAT, version, command, str(library.PATH), _digest_of(folder), numbers, header]
    key = hashlib.sha256(json.dumps(described).encode()).hexdigest()[:32]
    own = f"-DRNNORM_OWN={'float' if narrow else numbers}"
    make = functools.partial(_cached_or_made, key, header, [*command, own], version, name)
    try:
        try:
            return make()
        except _EmptiedError:
            return make()
    except (OSError, RuntimeError) as error:
        if isinstance(error, CompilationError):
            raise
        hint = f" ({FOLDER} names another folder for what is compiled)"
        hint = "" if isinstance(error, TimeoutError) else hint
        raise CompilationError(f"its compilation failed: {error}{hint}") from error


def _cached_or_made(key: str, header: str, command: Sequence[str], version: str, name: str) -> Path:
    """Return the path of a compiled cell, compiled if the cache has no whole file of its key.

    Raises:
        CompilationError: as ``compile``.
        OSError: if the cache cannot be written, or another process compiles the cell for too long.
    """
    seconds = _timeout()
    cache = make_private(cache_folder("cpu"))
    if why := distrusted(os.stat(cache)):
        raise CompilationError(
            f"compiled code is not loaded from {cache}, which {why}: let the folder be yours alone "
            f"(chmod go-w), or name another in {FOLDER}"
        )
    if found := cached(cache, key):
        return found
    if library.forked():
        raise CompilationError(
            "nothing is compiled in a forked process: call the layer once before the fork"
        )
    with locked(cache / f"{key}.lock", seconds):
        if found := cached(cache, key):
            return found
        _log.warning(
            "%s is compiled for this processor by %s, once: some seconds, more if it is busy",
            name,
            version,
        )
        began = time.monotonic()
        path = _make(cache, key, header, command, began + seconds)
        _log.warning("%s was compiled in %.1f s: %s", name, time.monotonic() - began, path)
        return path


def _timeout() -> float:
    """Return the seconds that a compilation may take.

    Raises:
        ValueError: if the environment variable is no number above 0.
    """
    given = os.environ.get(TIMEOUT)
    if not given:
        return _SECONDS
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    # not NaN either
    if not seconds > 0:
        raise ValueError(f"{TIMEOUT} must be a number of seconds above 0, got {given!r}")
    return seconds


@functools.cache
def _sources() -> tuple[Path, dict[str, list[str]]]:
    """Return the folder of the C++ sources, and the compiler's options by build.

    ``"all"`` are those of every build.

    Raises:
        CompilationError: if the package was installed without them.
    """
    for folder in cpu.__path__:
        kept = Path(folder, "csrc", "compiler_options.txt")
        if kept.is_file():
            lines = map(str.split, kept.read_text().splitlines())
            return kept.parent, {name: each for name, *each in lines}
    raise CompilationError("the package was installed without the C++ sources of its kernels")


@functools.cache
def _digest_of(folder: Path) -> str:
    """Return a digest of the C++ sources."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _compiler() -> list[str]:
    """Return the path of the C++ compiler, and what follows it in the environment's CXX.

    Without CXX it is the first compiler that is found.

    Raises:
        CompilationError: if there is none.
    """
    given = os.environ.get("CXX")
    # the whole CXX may be a path with spaces, or a command such as "ccache g++"
    named = [[given], given.split() or [given]] if given else [["c++"], ["g++"], ["clang++"]]
    for name, *arguments in named:
        if path := shutil.which(name):
            return [path, *arguments]
    if given:
        raise CompilationError(f"the environment's CXX={given} is not a C++ compiler")
    raise CompilationError(
        "no C++ compiler was found: install g++ or clang++, or name one in the environment's CXX"
    )


@functools.cache
def _version(path: str, changed: int) -> str:
    """Return the first line of a compiler's answer to ``--version``.

    Args:
        path: path of the compiler.
        changed: time of the file's last change, so that an update is seen.

    Raises:
        CompilationError: if it gives none.
    """
    try:
        answer = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=30
        )
        lines = answer.stdout.decode(errors="replace").splitlines()
    except (OSError, subprocess.SubprocessError) as error:
        raise CompilationError(f"{path} is not a C++ compiler: {error}") from error
    if answer.returncode or not lines:
        raise CompilationError(f"{path} is not a C++ compiler: {path} --version fails")
    return lines[0]


def _make(cache: Path, key: str, header: str, command: Sequence[str], until: float) -> Path:
    """Compile a cell into the cache, whose lock of the key is held.

    Raises:
        CompilationError: if the compiler fails, or is not ready in time.
        OSError: if the cache cannot be written.
    """
    assert library.PATH is not None
    parts = cache / f"{key}.parts"
    # a process that was killed may have left them
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir(mode=0o700)
    try:
        (parts / "own.h").write_text(header)
        folder, _ = _sources()
        names = [f"-DRNNORM_{each.upper()}=rnnorm_own_{each}" for each in _PASSES]
        compiled = [*command, *names, f"-I{parts}", f"-I{folder}", "-c"]
        objects = [f"{each}.o" for each in _PASSES]
        _run(
            [[*compiled, f"{folder}/{each}.cpp", "-o", f"{each}.o"] for each in _PASSES],
            parts,
            until,
        )
        linked = [str(library.PATH), f"-Wl,-rpath,{library.PATH.parent}", "-o", "own.so"]
        _run([[*command, "-shared", *objects, *linked]], parts, until)
        made_file = parts / "own.so"
        made_file.chmod(0o700)
        path = cache / f"{key}-{digest(key, made_file)}.so"
        os.replace(made_file, path)
        return path
    except (OSError, CompilationError) as error:
        if (parts / "own.h").exists():
            raise
        raise _EmptiedError(f"{parts} was deleted meanwhile") from error
    finally:
        shutil.rmtree(parts, ignore_errors=True)


def _run(commands: Sequence[Sequence[str]], folder: Path, until: float) -> None:
    """Run commands at the same time, none of which outlives the call.

    Raises:
        CompilationError: if one fails, or is not ready in time.
        OSError: if one cannot be started.
    """
    raised: list[Exception] = []
    stopped = threading.Event()

    def attempt() -> None:
        try:
            _run_in_thread(commands, folder, until, stopped)
        except Exception as error:
            raised.append(error)

    # Ctrl-C could hit the main thread after a process has started and before it is recorded
    thread = threading.Thread(target=attempt)
    try:
        thread.start()
        # without a time-out a Ctrl-C just before would be noticed only when join returns
        while thread.is_alive():
            thread.join(0.1)
    finally:
        stopped.set()
        thread.join()
    if raised:
        raise raised[0]


def _run_in_thread(
    commands: Sequence[Sequence[str]], folder: Path, until: float, stopped: threading.Event
) -> None:
    """Run commands until they end, their time is over or the caller has ``stopped``.

    Raises:
        CompilationError: if one fails, or is not ready in time.
        OSError: if one cannot be started.
    """
    # compilers leave their own temporary files where they are killed
    environment = os.environ | {"TMPDIR": str(folder), "LC_ALL": "C"}
    running: list[subprocess.Popen[bytes]] = []
    logs = [folder / f"{k}.log" for k in range(len(commands))]
    try:
        for command, log in zip(commands, logs, strict=True):
            with open(log, "wb") as file:
                running.append(
                    subprocess.Popen(
                        command,
                        cwd=folder,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=file,
                        stderr=file,
                        # a group of its own, which can be ended as a whole
                        start_new_session=True,
                    )
                )
        while any([process.poll() is None for process in running]) and not stopped.wait(0.01):
            if time.monotonic() > until:
                raise CompilationError(
                    f"{commands[0][0]} was not ready in time: {TIMEOUT} names more seconds"
                )
        for process, log in zip(running, logs, strict=True):
            if process.poll():
                said = (
                    first_errors(log.read_bytes()) or "without a message, as where a disk is full"
                )
                raise CompilationError(f"{commands[0][0]} failed ({process.returncode}):\n{said}")
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
