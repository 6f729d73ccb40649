"""The ``rnnorm`` command. Everything it does is a function that can be called from Python.

Help, usage errors and the list of recipes import neither torch nor Lightning, which would take
seconds: each command imports the function it calls when it runs.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import importlib.util
import io
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType, ModuleType
from typing import Any, NoReturn

import rnnorm
from rnnorm.experiments.commands import (
    bench,
    check,
    compare,
    demo,
    export,
    fit,
    recipes,
    report,
    search,
    test,
    write,
)
from rnnorm.experiments.commands.options import message
from rnnorm.experiments.console import nearest
from rnnorm.experiments.training.allocator import keep_freed_memory

_COMMANDS = {
    "demo": demo,
    "recipes": recipes,
    "fit": fit,
    "test": test,
    "compare": compare,
    "report": report,
    "write": write,
    "export": export,
    "search": search,
    "bench": bench,
    "check": check,
}
_NEEDS = (
    "jinja2",
    "jsonargparse",
    "kaldi_native_fbank",
    "kaldiio",
    "lightning",
    "matplotlib",
    "numpy",
    "optuna",
    "pooch",
    "sacrebleu",
    "sklearn",
    "soundfile",
    "tensorboard",
    "torchmetrics",
    "tqdm",
    "yaml",
)
# first words of the options of recipes
_OF_RECIPES = ("trainer", "model", "data", "optimizer", "lr_scheduler", "seed_everything")
# commands that, given again, resume where they were stopped
_RESUMABLE = ("compare", "demo", "search")


def console() -> int:
    """Run the command of this process, which Ctrl-C and SIGTERM end without half-written files.

    Returns:
        The exit status, as :func:`main` returns it.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        return main()
    finally:
        # within a library's function at exit, an exception would print a traceback
        for number, handler in _HANDLERS.items():
            if signal.getsignal(number) is handler:
                signal.signal(number, signal.SIG_DFL)


class _Terminated(SystemExit):
    """SIGTERM came. It is raised as Ctrl-C is, so that temporary files are removed."""


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated(128 + number)


# handlers whose exceptions may not be raised while torch is imported, nor at exit
_HANDLERS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: _terminate}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: the words after ``rnnorm``; the process's own by default.

    Returns:
        The exit status: 0, 1 if the command failed, 2 if it was misspelt or its device is
        missing, 3 if a check ran out of time, 130 after Ctrl-C, 143 after SIGTERM, 141 if the
        reader of the output has closed it.
    """
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        # Latin-1 cannot encode the dashes that are printed
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except OSError as error:
        # otherwise the rest of the buffer would raise the error again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141
        print(f"rnnorm: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # Ctrl-C came while the arguments were read
        return 130
    return status


def _open_streams() -> None:
    """Open /dev/null in place of each standard stream that the caller has closed.

    They are opened in order, so that each has the file number that libraries write to.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115


def _run(arguments: Sequence[str] | None) -> int:
    """Run the command that the arguments name, and return its exit status."""
    name, *words = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
    if name in ("-h", "--help", "--version"):
        version = f"rnnorm {rnnorm.__version__}"
        print(version if name == "--version" else _main_parser().format_help())
        return 0
    if name not in _COMMANDS:
        what = "option" if name.startswith("-") else "command"
        hint = _nearest(name, [*_COMMANDS, "--version"])
        _main_parser().error(f"no {what} is called {name!r}{hint}")
    command = _COMMANDS[name]
    parser = _parser(name, command)
    missing = [package for package in _NEEDS if importlib.util.find_spec(package) is None]
    if "-h" in words or "--help" in words:
        print(parser.format_help())
        return 0 if missing else _list_options(parser, words)
    if missing:
        needs = f"rnnorm {name} needs {', '.join(missing)}: "
        print(f'{needs}pip install ".[experiments]" in a clone of rnnorm', file=sys.stderr)
        return 1
    from rnnorm.experiments.recipe.recipe import OverrideError
    from rnnorm.experiments.recipe.trust import trusting
    from rnnorm.experiments.training.run_names import checkpoint_of, shell_word

    given = _parse(parser, words)
    trust = given.pop("trust", False)
    # bench and check time layers with the allocator of a user's own process
    if command not in (bench, check):
        keep_freed_memory()
    try:
        # what is missing, or does not go together, is reported before torch is imported
        if "checkpoint" in given:
            checkpoint_of(given["run"], given["checkpoint"])
        if hasattr(command, "refuse"):
            command.refuse(**given)
        if command is not recipes:
            _import_torch()
        with trusting(trust):
            status = command.run(**given)
    except OverrideError as error:
        parser.error(str(error))
    except BrokenPipeError:
        raise
    except (ValueError, OSError, RuntimeError) as error:
        print(f"rnnorm {name}: {message(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        status, on = 130, None
    except _Terminated:
        status, on = 143, None
    except SystemExit as stop:
        # imported here, since not every command needs Lightning
        from rnnorm.experiments.training.processes import is_first
        from rnnorm.experiments.training.signals import Stopped

        if not isinstance(stop, Stopped):
            raise
        status, again = stop.status, f"fit --resume {shell_word(stop.folder)}"
        on = again + " --trust" * trust if is_first() else None
    else:
        return status or 0
    if on := shlex.join([name, *words]) if name in _RESUMABLE else on:
        print(f"resume with: rnnorm {on}", flush=True)
    return status


def _import_torch() -> None:
    """Import torch, while Ctrl-C and SIGTERM end the process at once.

    An exception within numpy, which torch imports and goes on without, would be swallowed and
    leave half a module, whose errors come later.
    """
    if "torch" in sys.modules or threading.current_thread() is not threading.main_thread():
        return
    own = {n: handler for n, handler in _HANDLERS.items() if signal.getsignal(n) is handler}
    for number in own:
        signal.signal(number, signal.SIG_DFL)
    try:
        importlib.import_module("torch")
    finally:
        for number, handler in own.items():
            signal.signal(number, handler)


def _main_parser() -> argparse.ArgumentParser:
    """Return the parser that prints the help and the errors of ``rnnorm`` without a command."""
    width = max(map(len, _COMMANDS))
    listed = [f"  {n:{width}}  {c.HELP}" for n, c in _COMMANDS.items()]
    return argparse.ArgumentParser(
        prog="rnnorm",
        usage="rnnorm COMMAND ...\n       rnnorm COMMAND --help\n       rnnorm --version",
        description="Train normalised recurrent networks.",
        epilog="\n".join(["commands:", *listed]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )


def _parser(name: str, command: ModuleType) -> argparse.ArgumentParser:
    """Return the parser of a command."""
    parser = argparse.ArgumentParser(
        prog=f"rnnorm {name}",
        usage="\n       ".join(f"rnnorm {name} {usage}" for usage in command.USAGE),
        description=f"{command.HELP[0].upper()}{command.HELP[1:]}.",
        allow_abbrev=False,
    )
    command.add_options(parser)
    return parser


def _parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, Any]:
    """Return the command's arguments, with the options of the recipe as ``overrides``."""
    own, overrides = _split(words)
    known = [o for action in parser._actions for o in action.option_strings]
    # argparse would take the value of a misspelt option for a recipe or a run
    options = [word for word in own if re.fullmatch(r"--[\w.-]+(=.*)?", word, re.DOTALL)]
    unknown = [option for option in options if option.partition("=")[0] not in known]
    if not unknown:
        parsed, unknown = parser.parse_known_intermixed_args(own)
        given = vars(parsed)
        if "overrides" in given:
            given["overrides"] = overrides
        else:
            unknown += overrides
    if unknown:
        first = next((word for word in unknown if word.startswith("-")), unknown[0])
        first = first.partition("=")[0]
        if not first.startswith("-"):
            parser.error(f"unexpected argument {first!r}")
        known += [f"--{root}{first[len(_root(first)) + 2 :]}" for root in _OF_RECIPES]
        parser.error(f"no option is called {first!r}{_nearest(first, known)}")
    return given


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the command's own words, and the options of the recipe as ``--name=value``."""
    own, overrides, left = [], [], list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("--") or _root(word) not in _OF_RECIPES:
            own.append(word)
        elif "=" not in word and left and not left[0].startswith("--"):
            overrides.append(f"{word}={left.pop(0)}")
        else:
            overrides.append(word)
    return own, overrides


def _root(option: str) -> str:
    """Return the first word of an option's name, such as ``trainer``."""
    return option[2:].partition("=")[0].partition(".")[0]


def _nearest(word: str, known: Sequence[str]) -> str:
    """Return the clause that names the words most like a misspelt one."""
    return nearest(difflib.get_close_matches(word, known, n=3))


def _list_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    """Print the options of the recipe that is named, if the command takes them."""
    from rnnorm.experiments.training.run_names import is_recipe

    recipe = next((word for word in words if is_recipe(word)), None)
    if recipe is None or parser.get_default("overrides") is None:
        return 0
    _import_torch()
    from rnnorm.experiments.recipe.trust import trusting
    from rnnorm.experiments.training.build import option_list

    try:
        with trusting("--trust" in words):
            print(option_list(recipe))
    except (ValueError, OSError) as error:
        print(f"{parser.prog}: {message(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(console())
