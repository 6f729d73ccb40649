"""The callbacks of a trainer that are of one kind."""

from __future__ import annotations

from typing import TypeVar

from lightning.pytorch import Callback, Trainer

Kind = TypeVar("Kind", bound=Callback)


def callbacks_of(trainer: Trainer, kind: type[Kind]) -> list[Kind]:
    """Those that are instances of a class, in the order in which they are called."""
    own: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return [callback for callback in own if isinstance(callback, kind)]
