"""A way to train a generator, by its name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any, Literal

from rnnorm.experiments.models.ways.dad import Dad
from rnnorm.experiments.models.ways.last_steps import E2E, Mixer
from rnnorm.experiments.models.ways.scheduled import Always, Scheduled, Uniform
from rnnorm.experiments.models.ways.teacher import Teacher

Way = Literal["teacher", "scheduled", "always", "uniform", "dad", "e2e", "mixer"]

WAYS: Mapping[str, type[Teacher]] = {
    "teacher": Teacher,
    "scheduled": Scheduled,
    "always": Always,
    "uniform": Uniform,
    "dad": Dad,
    "e2e": E2E,
    "mixer": Mixer,
}


def way(name: str, options: Mapping[str, Any] | None = None) -> Teacher:
    """A way to train, by its name.

    Args:
        name: one of ``WAYS``.
        options: arguments of its class.

    Raises:
        ValueError: there is no such way, or it has no such option.
    """
    if name not in WAYS:
        raise ValueError(f"training must be one of {', '.join(WAYS)}, got {name!r}")
    given = dict(options or {})
    kind = WAYS[name]
    known = [*inspect.signature(kind).parameters]
    for option in given:
        if option not in known:
            near = difflib.get_close_matches(option, known)
            has = f"has {', '.join(near or known)}" if known else "has none"
            raise ValueError(
                f"training_options must be options of {name}, got {option!r}: it {has}"
            )
    try:
        return kind(**given)
    except TypeError as error:
        raise ValueError(
            f"training_options of {name} must be numbers, got {given}: {error}"
        ) from None
