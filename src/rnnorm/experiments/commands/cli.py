"""The ``rnnorm`` command. Everything it does is a function that can be called from Python.

Help, usage errors and the list of recipes need neither torch nor Lightning: a command imports what
it runs when it runs.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import io
import os
import shlex
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

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
# where the options of recipes begin
_OF_RECIPES = ("trainer", "model", "data", "optimizer", "lr_scheduler", "seed_everything")
# the same command again goes on where it was stopped
_GO_ON = ("compare", "demo", "search")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: those of the process by default.

    Returns:
        The exit status: 0, 1 if the command failed, 2 if it was misspelt or its device is
        missing, 130 after Ctrl-C, 143 after SIGTERM and 141 if whoever read the output has gone.
    """
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        # a terminal or a file in Latin-1 has no dash
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except OSError as error:
        # what is left in the buffer would be said again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141
        print(f"rnnorm: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # while the command was read
        return 130
    return status


def _open_streams() -> None:
    """Opens a standard stream that who started the command has closed, to nowhere.

    In order, so that each has its own number, which signal handlers and libraries write to.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115


def _run(arguments: Sequence[str] | None) -> int:
    name, *words = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
    if name in ("-h", "--help", "--version"):
        print(f"rnnorm {rnnorm.__version__}" if name == "--version" else _whole().format_help())
        return 0
    if name not in _COMMANDS:
        what = "option" if name.startswith("-") else "command"
        _whole().error(f"no {what} is called {name!r}{_nearest(name, [*_COMMANDS, '--version'])}")
    command = _COMMANDS[name]
    parser = _parser(name, command)
    missing = [package for package in _NEEDS if importlib.util.find_spec(package) is None]
    if "-h" in words or "--help" in words:
        print(parser.format_help())
        return 0 if missing else _list_options(parser, words)
    if missing:
        said = f"rnnorm {name} needs {', '.join(missing)}: "
        print(f'{said}pip install ".[experiments]" in a clone of rnnorm', file=sys.stderr)
        return 1
    from rnnorm.experiments.recipe.recipe import OverrideError
    from rnnorm.experiments.recipe.trust import trusting
    from rnnorm.experiments.training.run_names import checkpoint_of, shell_word
    from rnnorm.experiments.training.stopped import Stopped

    given = _parse(parser, words)
    trust = given.pop("trust", False)
    # what is timed has the memory of a user's own process
    if command not in (bench, check):
        keep_freed_memory()
    try:
        if "checkpoint" in given:
            # found before torch is imported
            given["checkpoint"] = checkpoint_of(given["run"], given["checkpoint"])
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
    except Stopped as stop:
        from rnnorm.experiments.training.processes import is_first

        status, again = stop.status, f"fit --resume {shell_word(stop.folder)}"
        on = again + " --trust" * trust if is_first() else None
    else:
        return status or 0
    if on := shlex.join([name, *words]) if name in _GO_ON else on:
        print(f"go on with: rnnorm {on}", flush=True)
    return status


def _whole() -> argparse.ArgumentParser:
    """For the help and the errors of the whole command line."""
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
    parser = argparse.ArgumentParser(
        prog=f"rnnorm {name}",
        usage="\n       ".join(f"rnnorm {name} {usage}" for usage in command.USAGE),
        description=f"{command.HELP[0].upper()}{command.HELP[1:]}.",
        allow_abbrev=False,
    )
    command.add_options(parser)
    return parser


def _parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, Any]:
    """The command's arguments, those of the recipe among them as ``overrides``."""
    own, overrides = _apart(words)
    options, unknown = parser.parse_known_intermixed_args(own)
    given = vars(options)
    if "overrides" in given:
        given["overrides"] = overrides
    else:
        unknown += overrides
    if unknown:
        first = next((word for word in unknown if word.startswith("-")), unknown[0])
        first = first.partition("=")[0]
        if not first.startswith("-"):
            parser.error(f"unexpected argument {first!r}")
        known = [o for action in parser._actions for o in action.option_strings]
        known += [f"--{root}{first[len(_root(first)) + 2 :]}" for root in _OF_RECIPES]
        parser.error(f"no option is called {first!r}{_nearest(first, known)}")
    return given


def _apart(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The command's own words, and the options of the recipe as ``--name=value``."""
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
    return option[2:].partition("=")[0].partition(".")[0]


def _nearest(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=3)
    return f": the nearest are {', '.join(near)}" if near else ""


def _list_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    """Prints the options of the recipe that is named, if the command takes them."""
    from rnnorm.experiments.training.run_names import is_recipe

    recipe = next((word for word in words if is_recipe(word)), None)
    if recipe is None or parser.get_default("overrides") is None:
        return 0
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
    sys.exit(main())
