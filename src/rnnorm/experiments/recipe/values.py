"""Checks of arguments by their types, where jsonargparse lets a value through or was not asked."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Iterator, Mapping
from pydoc import locate
from types import NoneType
from typing import Any, Literal

from jsonargparse import Namespace
from lightning.pytorch import Trainer

from rnnorm.experiments.console import check_choice

_MOST = 2**63 - 1


def check_values(config: Namespace) -> None:
    """Refuse null where a signature lacks None, integers beyond 64 bits, nan and infinity.

    jsonargparse takes null for every type. All values of a recipe are checked here, so that a class
    only checks its own ranges.

    Args:
        config: LightningCLI's parsed configuration, before anything in it is instantiated.

    Raises:
        ValueError: if there is such a value; the message names the option and what it takes.
    """
    _check_arguments(Trainer, config["trainer"], "trainer")
    for name in ("model", "data", "optimizer", "lr_scheduler"):
        if config.get(name) is not None:
            _check(config[name], name)


def check_choices(kind: type[Any], given: Mapping[str, Any]) -> None:
    """Refuse arguments of a class that their ``Literal`` types do not list.

    Recipes were checked by jsonargparse; Python callers were not.

    Raises:
        ValueError: if an argument has another value; the message names the argument.
    """
    # a subclass may take more names than its base
    for name, (_, hint) in dict(_parameters(kind)).items():
        if typing.get_origin(hint) is Literal and name in given:
            check_choice(hint, **{name: given[name]})


def _check(value: Any, name: str) -> None:
    """Check a value, and the values in it, of the option ``name``."""
    given = value.as_dict() if isinstance(value, Namespace) else value
    if isinstance(given, Mapping) and "class_path" in given:
        arguments = given.get("init_args") or {}
        return _check_arguments(locate(given["class_path"]), arguments, f"{name}.init_args")
    if isinstance(given, Mapping):
        for key, inner in given.items():
            _check(inner, f"{name}.{key}")
    elif isinstance(given, list | tuple):
        for inner in given:
            _check(inner, name)
    # the number of devices may be a string
    elif name == "trainer.devices" and isinstance(given, str) and given.isdecimal():
        _check(int(given[:4000]), name)
    elif isinstance(given, int) and not -_MOST <= given <= _MOST:
        raise ValueError(f"{name} must be from {-_MOST} to {_MOST}, got {given!s:.40}")
    elif isinstance(given, float) and not math.isfinite(given):
        raise ValueError(f"{name} must be a finite number, got {given}")
    return None


def _check_arguments(kind: Any, given: Mapping[str, Any] | Namespace, name: str) -> None:
    """Check the arguments of a class, which are the options below ``name``."""
    arguments = given.as_dict() if isinstance(given, Namespace) else given
    taken = dict(_parameters(kind))
    for key, value in arguments.items():
        default, hint = taken.get(key, (None, None))
        if value is None and default is not None and not _takes_none(hint):
            what = getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else hint
            raise ValueError(f"{name}.{key} must be of type {what}, got null")
        # a default may be infinite
        if value is not default:
            _check(value, f"{name}.{key}")


def _parameters(kind: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the name, default and type of each argument of a class and its bases."""
    for base in reversed(inspect.getmro(kind)):
        if (make := vars(base).get("__init__")) is None or base is object:
            continue
        try:
            hints = typing.get_type_hints(make)
        except (NameError, TypeError, AttributeError):
            # a type that is imported for type checkers only
            hints = {}
        for key, parameter in inspect.signature(make).parameters.items():
            default = ... if parameter.default is parameter.empty else parameter.default
            yield key, (default, hints.get(key, Any))


def _takes_none(hint: Any) -> bool:
    """Tell whether a type hint allows None."""
    return hint in (Any, object, None, NoneType) or NoneType in typing.get_args(hint)
