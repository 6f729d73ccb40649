"""Reader of YAML that is written by hand: its numbers, and a bound on what a file becomes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from rnnorm.experiments.data.whole_file import allowed, how_to_raise, unpack

# bytes of a file, and values with every alias in its full length: nine nested ones make a billion
_LIMIT = 1 << 18
_MOST_VALUES = 10_000
# numbers as YAML 1.2 has them: of 1e-4, .5e3 and 010, PyYAML makes text, text and 8; underscores
# are read as PyYAML does
_INT, _FLOAT, _DATE = (f"tag:yaml.org,2002:{name}" for name in ("int", "float", "timestamp"))
_NUMBERS = {
    _INT: r"[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+",
    _FLOAT: r"[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}


def _with_numbers(base: Any) -> Any:
    """A reader or writer of YAML that takes these numbers for numbers, and dates for text."""
    known = {
        first: [(tag, pattern) for tag, pattern in of if tag not in (*_NUMBERS, _DATE)]
        for first, of in base.yaml_implicit_resolvers.items()
    }
    made = type(base.__name__, (base,), {"yaml_implicit_resolvers": known})
    for tag, pattern in _NUMBERS.items():
        made.add_implicit_resolver(tag, re.compile(rf"(?:{pattern})\Z"), [*"-+.0123456789"])  # type: ignore[attr-defined]
    return made


def _whole_number(loader: Any, node: Any) -> int:
    text = loader.construct_scalar(node).replace("_", "")
    return int(text, 0 if text[:2] in ("0o", "0x") else 10)


#: reads every YAML here, that which jsonargparse reads too
YamlLoader: Any = _with_numbers(yaml.SafeLoader)
# several times as fast, where PyYAML was built with it; deep nesting can crash it
_FastLoader: Any = _with_numbers(getattr(yaml, "CSafeLoader", yaml.SafeLoader))
# text that would be read as a number is quoted
_Dumper: Any = _with_numbers(yaml.SafeDumper)
for _loader in (YamlLoader, _FastLoader):
    _loader.add_constructor(_INT, _whole_number)


def dump_yaml(value: Any) -> str:
    """Plain types as YAML that reads as the same, keys in their order."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


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
        loader = (_FastLoader if trusted else YamlLoader)(data)
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
