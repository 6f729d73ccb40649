"""Where two configurations differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def differences(
    one: Any, two: Any, path: str = "", said: str = "is {!r} and {!r}"
) -> Iterator[str]:
    """Where two configurations differ, such as ``data.init_args.length is 50 and 100``.

    Args:
        one: a configuration, or a part of it.
        two: the other one.
        path: what they are called.
        said: what is said of the two values.
    """
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        for key in [*one, *(k for k in two if k not in one)]:
            inner = f"{path}.{key}".lstrip(".")
            yield from differences(one.get(key), two.get(key), inner, said)
    elif one != two:
        yield f"{path} {said.format(one, two)}"
