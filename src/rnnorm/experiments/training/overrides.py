"""Overrides as jsonargparse takes them, and why it has refused one."""

from __future__ import annotations

import difflib
import re
from argparse import ArgumentError
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from rnnorm.experiments.training.options import option_values
from rnnorm.experiments.training.recipe import FROM_FIT, NO_EFFECT, ONE_SEED
from rnnorm.experiments.training.yaml_file import YamlLoader, dump_yaml

#: options of the trainer that a training has from fit alone
FIT_SETS = re.compile(rf"--trainer\.({'|'.join(FROM_FIT)})\b")
_OPTION = re.compile(r"--model\.(?:init_args\.)?(\w+_options)\.(\w+)=(.*)", re.DOTALL)
_PATH = re.compile(r"--data\.(?:init_args\.)?(data_dir|file|source|target)=(.*)", re.DOTALL)
_NO_NORM = re.compile(r"(--model\.(?:init_args\.)?norm)=[Nn]one")
_SEED = re.compile(r"--data\.(?:init_args\.)?seed\b")


def with_single_options(config: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """YAML with single options of norm, cell or dropout and paths in it, and the other overrides.

    On the command line jsonargparse would take the value null of an option for the word "None", and
    a path that has a colon for a dictionary. ``--model.norm=none`` is no norm, as for ``--vary``.

    Raises:
        ArgumentError: the value of an option is not YAML, or an option would be without effect:
            the data's seed apart from that of the weights, or what every training here has.
    """
    whole, rest = dict(config), []
    for override in overrides:
        if match := _OPTION.fullmatch(override):
            arguments = _init_args(whole, "model")
            try:
                value = yaml.load(match[3], YamlLoader)
            except (yaml.YAMLError, ValueError):
                raise ArgumentError(None, f"{override} has no value that YAML reads") from None
            arguments[match[1]] = {**(arguments.get(match[1]) or {}), match[2]: value}
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
    """The arguments in a configuration, to be changed, of a class that may have none yet."""
    given = {"class_path": whole[part]} if isinstance(whole[part], str) else whole[part]
    arguments = dict(given.get("init_args") or {})
    whole[part] = {**given, "init_args": arguments}
    return arguments


def why_refused(
    message: str, overrides: Sequence[str], whole: Callable[[], Mapping[str, Any]]
) -> str:
    """What is wrong, out of jsonargparse's report on every type that a value might have had.

    Args:
        message: the report.
        overrides: the options that were given.
        whole: gives the configuration without them, defaults included; not called where every
            option is known.
    """
    refused = re.search(r"unrecognized arguments: (\S+)|Option '(\w+)' is not acc", message)
    # where a class may be another one, one of them may have the option and refuse its value
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
    # every part of a recipe might also be None
    told = [error for error in each if error and error != "Expected a <class 'NoneType'>"]
    said = " ".join([*before.split(), "; ".join(told)])
    return re.sub(rf"{found} Subtypes: .*? Errors:;? ?", "", said)


def _unknown(option: str, config: Mapping[str, Any]) -> str:
    """That there is no such option, and the nearest that the recipe has."""
    name = option.partition("=")[0]
    root, last = name.partition(".")[0], name.rpartition(".")[2]
    own = {o.rpartition(".")[2]: o for o in option_values(config) if o.startswith(root)}
    near = [own[found] for found in difflib.get_close_matches(last, own, n=3)]
    return f"no option is called {name}" + (f": the nearest are {', '.join(near)}" if near else "")
