"""Other values of modules' attributes within a context."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def temporarily(modules: Iterable[nn.Module], **values: Any) -> Iterator[None]:
    """Set attributes of modules within the context, where a module has the attribute.

    An attribute that is a module, such as a subclass's own ``dropout``, stays as it is.
    """
    before = [(module, _values_of(module, values), set(vars(module))) for module in modules]
    try:
        for module, old, _ in before:
            for name in old:
                setattr(module, name, values[name])
        yield
    finally:
        for module, old, names in before:
            for name, value in old.items():
                setattr(module, name, value)
                if name not in names:
                    # the attribute was of the class: the instance needs none
                    vars(module).pop(name, None)


def _values_of(module: nn.Module, names: Iterable[str]) -> dict[str, Any]:
    found = {name: getattr(module, name) for name in names if hasattr(module, name)}
    return {name: value for name, value in found.items() if not isinstance(value, nn.Module)}
