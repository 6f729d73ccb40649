"""Options of LightningCLI: what is changed most often, and what a configuration has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rnnorm.experiments.data.at_least import check_at_least


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
