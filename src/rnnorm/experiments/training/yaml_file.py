"""Reader of YAML files that are written by hand, with a bound on what they become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rnnorm.experiments.data.whole_file import allowed, how_to_raise, unpack

# bytes of a file, and values with every alias in its full length: nine nested ones make a billion
_LIMIT = 1 << 18
_MOST_VALUES = 10_000
# several times as fast, where PyYAML was built with it; deep nesting can crash it
_FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path, trusted: bool = False) -> Any:
    """Read a file.

    Args:
        path: the file.
        trusted: it comes with the package.

    Raises:
        ValueError: it is not YAML, or too large; the message names it.
        FileNotFoundError: there is no such file.
    """
    data = unpack(path, "", _LIMIT)
    try:
        # bytes, so that text that cannot be decoded is an error of the same kind
        loader = (_FAST if trusted else yaml.SafeLoader)(data)
        node = loader.get_single_node()
        if (values := _values(node, {})) > (most := allowed(_MOST_VALUES)):
            raise ValueError(
                f"it has {values:,} values, more than the limit of {most:,}; {how_to_raise()}"
            )
        return None if node is None else loader.construct_document(node)
    # of what a tag says that is not so, yaml lets python's own errors through
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not YAML: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is not YAML that can be read: it is nested too deeply") from None


def _values(node: Any, known: dict[int, int]) -> int:
    """How many values a node has, those of an alias counted wherever it stands."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        # until it is known it is inside itself
        known[id(node)] = allowed(_MOST_VALUES) + 1
        parts = node.value
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in parts for part in pair]
        known[id(node)] = 1 + sum(_values(part, known) for part in parts)
    return known[id(node)]
