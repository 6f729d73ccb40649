"""What a training is called: its recipe, and what was changed of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rnnorm.experiments.training.options import option_name

# how long, where and how fast it trains, and the seed, which is told apart
_NOT_TOLD = (
    "accelerator",
    "data_dir",
    "eval_batch_size",
    "log_every_n_steps",
    "max_epochs",
    "max_steps",
    "seed",
    "seed_everything",
)


def changes(overrides: Iterable[str], scale: str = "paper") -> tuple[str, ...]:
    """What makes a training another one than its recipe's, such as ``("norm=layer", "lr=0.01")``.

    Args:
        overrides: options of LightningCLI; the later one of two counts.
        scale: ``"small"`` is a change too.
    """
    given = {option_name(option): option.partition("=")[2] for option in overrides}
    named = [(option.rpartition(".")[2], value) for option, value in given.items()]
    told = [f"{name}={value}" for name, value in named if name not in _NOT_TOLD]
    return (*(["small"] if scale == "small" else []), *told)


def changes_of(about: Mapping[str, Any]) -> tuple[str, ...]:
    """The same, out of a ``run.json``."""
    return changes(about.get("overrides", ()), about["scale"])


def label(about: Mapping[str, Any]) -> str:
    """What a run is called, by its ``run.json``."""
    return ", ".join([about["recipe"], *changes_of(about)])
