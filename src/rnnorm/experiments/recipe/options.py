"""Options of a recipe: short forms of the common ones, and why jsonargparse refused one."""

from __future__ import annotations

import difflib
import math
import re
from argparse import ArgumentError
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rnnorm.experiments.console import check_at_least, nearest
from rnnorm.experiments.recipe.recipe import FROM_FIT, NO_EFFECT, ONE_SEED, YamlLoader, dump_yaml


def training_options(
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
) -> list[str]:
    """Return LightningCLI's options for the arguments that are given, then the other overrides.

    Raises:
        ValueError: if ``epochs`` or ``batch_size`` is less than 1, ``lr`` is negative or not
            finite, ``seed`` is not from 0 to 2³² - 1, or one of the four is among the overrides
            too.
    """
    check_at_least(1, epochs=epochs, batch_size=batch_size)
    if lr is not None and not 0 <= lr < math.inf:
        raise ValueError(f"lr must be a finite number of at least 0, got {lr}")
    if seed is not None and not 0 <= seed < 2**32:
        raise ValueError(f"seed must be from 0 to {2**32 - 1}, got {seed}")
    given = {
        "trainer.max_epochs": epochs,
        "optimizer.init_args.lr": lr,
        "data.init_args.batch_size": batch_size,
        "seed_everything": seed,
    }
    options = [f"--{name}={value}" for name, value in given.items() if value is not None]
    refuse_twice(options, overrides)
    if epochs is not None:
        # a limit in epochs replaces the recipe's limit in steps
        options.insert(1, "--trainer.max_steps=-1")
    return [*options, *overrides]


def refuse_twice(options: Sequence[str], more: Sequence[str]) -> None:
    """Refuse an option that is given in two ways.

    Raises:
        ValueError: if ``more`` sets an option that ``options`` sets.
    """
    names = {option_name(option): option for option in options}
    for other in more:
        if first := names.get(option_name(other)):
            raise ValueError(f"one option may be given once, got {first} and {other}")


def data_dir_option(data_dir: str | Path | None) -> list[str]:
    """Return the override that sets the folder of the data, empty for None."""
    return [] if data_dir is None else [f"--data.init_args.data_dir={data_dir}"]


def option_name(option: str) -> str:
    """Return the name of an override's option, without the optional ``init_args``."""
    return option.lstrip("-").partition("=")[0].replace(".init_args.", ".")


def option_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration's values by the names of their command line options."""
    found: dict[str, Any] = {}

    def walk(value: Any, name: str) -> None:
        # arguments of norm, cell or dropout are one option
        if isinstance(value, dict) and not name.endswith("_options"):
            for key, inner in value.items():
                walk(inner, name if key == "init_args" else f"{name}.{key}".lstrip("."))
        elif not name.endswith("class_path"):
            found[f"--{name}"] = value

    walk(config, "")
    return found


#: options of the trainer that only fit sets
FIT_SETS = re.compile(rf"--trainer\.({'|'.join(FROM_FIT)})\b")
_OPTION = re.compile(r"--model\.(?:init_args\.)?(\w+_options)(?:\.(\w+))?=(.*)", re.DOTALL)
_PATH = re.compile(r"--data\.(?:init_args\.)?(data_dir|file|source|target)=(.*)", re.DOTALL)
_NO_NORM = re.compile(r"(--model\.(?:init_args\.)?norm)=[Nn]one")
_SEED = re.compile(r"--data\.(?:init_args\.)?seed\b")


def with_single_options(config: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """Return YAML that includes paths and the options of norm, cell and dropout, then the rest.

    On the command line jsonargparse would let whole options replace single ones that follow them,
    and read an option's null as the word "None", and a path with a colon as a dictionary.
    ``--model.norm=none`` means no norm, as for ``--vary``.

    Raises:
        ArgumentError: if an option's value is not YAML, an option is of something that is not a
            mapping, or an option would have no effect: a seed of the data, or an option that only
            fit sets.
    """
    whole, rest = dict(config), []
    for override in overrides:
        if match := _OPTION.fullmatch(override):
            arguments = _init_args(whole, "model")
            try:
                value = yaml.load(match[3], YamlLoader)
            except (yaml.YAMLError, ValueError):
                raise ArgumentError(None, f"{override} has no value that YAML reads") from None
            if match[2]:
                given = arguments.get(match[1]) or {}
                if not isinstance(given, Mapping):
                    raise ArgumentError(
                        None, f"{override} needs {match[1]} to be a mapping, got {given!r}"
                    )
                value = {**given, match[2]: value}
            arguments[match[1]] = value
        elif match := _PATH.fullmatch(override):
            path = None if match[2] == "null" else match[2]
            _init_args(whole, "data")[match[1]] = path
        elif match := _NO_NORM.fullmatch(override):
            rest.append(f"{match[1]}=null")
        elif FIT_SETS.match(override):
            raise ArgumentError(None, f"{override} {NO_EFFECT}")
        elif _SEED.match(override):
            raise ArgumentError(None, f"{override} {ONE_SEED}: --seed_everything")
        else:
            rest.append(override)
    return [dump_yaml(whole), *rest]


def _init_args(whole: dict[str, Any], part: str) -> dict[str, Any]:
    """Put a new dictionary of a class's arguments into a configuration and return it."""
    given = {"class_path": whole[part]} if isinstance(whole[part], str) else whole[part]
    arguments = dict(given.get("init_args") or {})
    whole[part] = {**given, "init_args": arguments}
    return arguments


def why_refused(
    message: str, overrides: Sequence[str], whole: Callable[[], Mapping[str, Any]]
) -> str:
    """Condense jsonargparse's report on every possible type of a value to the reason.

    Args:
        message: jsonargparse's report.
        overrides: the options given.
        whole: returns the configuration without the overrides, defaults included; called only for
            an unknown option.
    """
    refused = re.search(r"unrecognized arguments: (\S+)|Option '(\w+)' is not acc", message)
    # of several allowed classes, one may know the option and refuse its value
    if refused and f'Parser key "{refused[2]}"' not in message:
        for option in overrides:
            name = option.partition("=")[0]
            if option == refused[1] or name.rpartition(".")[2] == refused[2]:
                return _unknown(option, whole())
    before, found, report = message.partition("Does not validate against any of the Union subtypes")
    if not found:
        return " ".join(message.split())
    errors = report.partition("Errors:")[2].partition("Given value type:")[0]
    each = [" ".join(error.split()) for error in re.split(r"^ *- ", errors, flags=re.MULTILINE)]
    # every part of a recipe may be None, which explains nothing
    told = [error for error in each if error and error != "Expected a <class 'NoneType'>"]
    # a word was tried as the name of a file or a class, too, where a number is wanted
    tried = ("Expected a path but", "Expected a dot import path")
    reasons = [error for error in told if not error.startswith(tried)] or told
    joined = " ".join([*before.split(), "; ".join(reasons)])
    return re.sub(rf"{found} Subtypes: .*? Errors:;? ?", "", joined).replace(":; ", ": ")


def _unknown(option: str, config: Mapping[str, Any]) -> str:
    """Return the error for an unknown option, with the recipe's nearest names."""
    name = option.partition("=")[0]
    root, last = name.partition(".")[0], name.rpartition(".")[2]
    known = {o.rpartition(".")[2]: o for o in option_values(config) if o.startswith(root)}
    near = [known[found] for found in difflib.get_close_matches(last, known, n=3)]
    return f"no option is called {name}{nearest(near)}"
