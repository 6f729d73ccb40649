"""The ranges that a recipe states, and the options that a trial draws from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution


def space_of(ranges: Mapping[str, Any]) -> dict[str, BaseDistribution]:
    """Read a recipe's ``search.space``: for each option ``choices``, or ``low``, ``high``, ``log``.

    Raises:
        ValueError: an option has another form, or a range is none.
    """
    return {option: _distribution(option, given) for option, given in ranges.items()}


def _distribution(option: str, given: Any) -> BaseDistribution:
    keys = given.keys() if isinstance(given, dict) else set()
    try:
        if keys == {"choices"} and isinstance(given["choices"], list):
            return CategoricalDistribution(given["choices"])
        if {"low", "high"} <= keys <= {"low", "high", "log"}:
            for name in ("low", "high"):
                number = given[name]
                if isinstance(number, bool) or not math.isfinite(number):
                    raise ValueError(f"{name} must be a finite number")
            return FloatDistribution(**given)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"search.space.{option}: {error}, got {given}") from None
    raise ValueError(f"search.space.{option} must have 'choices', or 'low' and 'high', got {given}")


def any_of(space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """A point of the space."""
    return {
        name: d.choices[0] if isinstance(d, CategoricalDistribution) else d.low  # type: ignore[attr-defined]
        for name, d in space.items()
    }


def draw(
    trial: optuna.Trial, space: Mapping[str, BaseDistribution], seed: int
) -> Mapping[str, Any]:
    """The point of a trial, that of an earlier process if one has drawn it."""
    sequence = np.random.SeedSequence((seed, trial.number))
    trial.study.sampler = optuna.samplers.RandomSampler(int(sequence.generate_state(1)[0]))
    for name, distribution in space.items():
        trial._suggest(name, distribution)
    return trial.params


def as_options(point: Mapping[str, Any]) -> list[str]:
    """A point as options of LightningCLI."""
    return [f"--{name}={'null' if value is None else value}" for name, value in point.items()]
