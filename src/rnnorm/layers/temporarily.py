"""Attributes of modules with other values for a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def temporarily(modules: Iterable[nn.Module], **values: Any) -> Iterator[None]:
    """Give modules other values of those attributes that they have, and afterwards their own.

    An attribute that is a module, such as a subclass's own ``dropout``, stays as it is.
    """
    before = [(module, _own(module, values), set(vars(module))) for module in modules]
    try:
        for module, own, _ in before:
            for name in own:
                setattr(module, name, values[name])
        yield
    finally:
        for module, own, names in before:
            for name, value in own.items():
                setattr(module, name, value)
                if name not in names:
                    # a class has it for all
                    vars(module).pop(name, None)


def _own(module: nn.Module, values: Mapping[str, Any]) -> dict[str, Any]:
    own = {name: getattr(module, name) for name in values if hasattr(module, name)}
    return {name: value for name, value in own.items() if not isinstance(value, nn.Module)}
