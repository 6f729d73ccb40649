"""The states of an LSTM, which are two, or of another cell, which is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def each(state: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """All of them changed by a function."""
    return tuple(map(function, state)) if isinstance(state, tuple) else function(state)


def rows_of(state: Any, rows: Tensor) -> Any:
    """Those of some rows."""
    return each(state, lambda one: one[:, rows])


def side_by_side(states: Tensor) -> Tensor:
    """Those of both directions of a layer ``(2, B, H)`` as one ``(B, 2H)``."""
    return states.transpose(0, 1).flatten(1)
