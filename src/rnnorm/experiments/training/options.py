"""Options of LightningCLI: what is changed most often, their values, why one is refused."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def training_options(
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
) -> list[str]:
    """The options of LightningCLI for what is changed most often, and the other overrides.

    Raises:
        ValueError: ``epochs`` or ``batch_size`` is less than 1, ``lr`` is negative or not finite,
            ``seed`` is none that numpy takes, or one of them is among the overrides too.
    """
    for name, number in (("epochs", epochs), ("batch_size", batch_size)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")
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
        # a budget in epochs is one whatever the recipe's steps are
        options.insert(1, "--trainer.max_steps=-1")
    return [*options, *overrides]


def refuse_twice(options: Sequence[str], more: Sequence[str]) -> None:
    """Refuse one option that is given in two ways.

    Raises:
        ValueError: one of ``more`` sets what one of ``options`` does.
    """
    names = {option_name(option): option for option in options}
    for other in more:
        if own := names.get(option_name(other)):
            raise ValueError(f"one option may be given once, got {own} and {other}")


def data_dir_option(data_dir: str | Path | None) -> list[str]:
    """The override that tells the data where its files are."""
    return [] if data_dir is None else [f"--data.init_args.data_dir={data_dir}"]


def option_name(option: str) -> str:
    """What an override sets, without the ``init_args`` that may be left out."""
    return option.lstrip("-").partition("=")[0].replace(".init_args.", ".")


def option_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration has, by the names of the command line."""
    found: dict[str, Any] = {}

    def walk(value: Any, name: str) -> None:
        # a dictionary of arguments is one option
        if isinstance(value, dict) and not name.endswith("_options"):
            for key, inner in value.items():
                walk(inner, name if key == "init_args" else f"{name}.{key}".lstrip("."))
        elif not name.endswith("class_path"):
            found[f"--{name}"] = value

    walk(config, "")
    return found


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
        return message
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
