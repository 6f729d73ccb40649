"""Values of the right type that no argument takes: null, and numbers without a size."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Iterator, Mapping
from pydoc import locate
from types import NoneType
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import Trainer

_MOST = 2**63 - 1


def check_values(config: Namespace) -> None:
    """Refuse null where a signature has no None, numbers beyond 64 bits, and nan and infinity.

    jsonargparse takes null for every type. Here all values of a recipe are seen, so that each class
    has to check its own ranges alone.

    Args:
        config: of LightningCLI, parsed; nothing in it was made yet.

    Raises:
        ValueError: naming the option, what it takes and what it was given.
    """
    _check_arguments(Trainer, config["trainer"], "trainer")
    for name in ("model", "data", "optimizer", "lr_scheduler"):
        if config.get(name) is not None:
            _check(config[name], name)


def _check(value: Any, name: str) -> None:
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
    # the number of devices may be a text
    elif name == "trainer.devices" and isinstance(given, str) and given.isdecimal():
        _check(int(given[:4000]), name)
    elif isinstance(given, int) and not -_MOST <= given <= _MOST:
        raise ValueError(f"{name} must be from {-_MOST} to {_MOST}, got {given!s:.40}")
    elif isinstance(given, float) and not math.isfinite(given):
        raise ValueError(f"{name} must be a finite number, got {given}")
    return None


def _check_arguments(kind: Any, given: Mapping[str, Any] | Namespace, name: str) -> None:
    arguments = given.as_dict() if isinstance(given, Namespace) else given
    taken = dict(_parameters(kind))
    for key, value in arguments.items():
        default, hint = taken.get(key, (None, None))
        if value is None and default is not None and not _takes_none(hint):
            what = getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else hint
            raise ValueError(f"{name}.{key} must be of type {what}, got null")
        # an infinite default is none's fault
        if value is not default:
            _check(value, f"{name}.{key}")


def _parameters(kind: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Default and type of each argument of a class, of those that it hands on to its bases too."""
    for base in reversed(inspect.getmro(kind)):
        if (make := vars(base).get("__init__")) is None or base is object:
            continue
        try:
            hints = typing.get_type_hints(make)
        except (NameError, TypeError, AttributeError):
            # a type that is there for type checkers alone
            hints = {}
        for key, parameter in inspect.signature(make).parameters.items():
            default = ... if parameter.default is parameter.empty else parameter.default
            yield key, (default, hints.get(key, Any))


def _takes_none(hint: Any) -> bool:
    return hint in (Any, object, None, NoneType) or NoneType in typing.get_args(hint)
