"""Attributes of modules with other values for a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def switched(modules: Iterable[nn.Module], **values: Any) -> Iterator[None]:
    """Give modules other values of those attributes that they have, and afterwards their own."""
    before = [(m, {name: getattr(m, name) for name in values if hasattr(m, name)}) for m in modules]
    try:
        for module, own in before:
            for name in own:
                setattr(module, name, values[name])
        yield
    finally:
        for module, own in before:
            for name, value in own.items():
                setattr(module, name, value)
