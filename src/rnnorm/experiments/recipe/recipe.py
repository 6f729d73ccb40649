"""Recipes: one YAML file for each row of a paper's table, run by LightningCLI.

A recipe has the keys of LightningCLI and four others: ``about`` describes the row and has the
paper's number, ``small`` holds the changes of ``--scale small``, ``search`` the ranges of the
options that the paper drew at random. ``base`` names another recipe, which the keys then change.
"""

from __future__ import annotations

import difflib
import enum
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rnnorm.experiments.console import nearest
from rnnorm.experiments.files import file_exists, how_to_raise, raised_limit, unpack

FOLDER = Path(__file__).parents[1] / "recipes"
#: endings of a user's recipe, which is named by its path
ENDINGS = (".yaml", ".yml")
#: arguments of the trainer that only fit sets
FROM_FIT = (
    "default_root_dir",
    "enable_checkpointing",
    "enable_model_summary",
    "enable_progress_bar",
    "logger",
    "num_sanity_val_steps",
)
NO_EFFECT = "has no effect: a training has the files and the progress of fit"
ONE_SEED = "is the seed of the weights too"
_NUMBER = (int, float, type(None))
# the keys that LightningCLI does not know, and the types of their values
_TYPES: dict[str, dict[str, Any]] = {
    "about": dict.fromkeys(("title", "paper", "metric", "note", "small"), str)
    | {"number": _NUMBER},
    "small": {"note": str},
    "search": {"trials": int, "space": dict},
}
_NEEDED = {"small": ("note",), "search": ("trials", "space")}


class OverrideError(ValueError):
    """Error for an override that the recipe's trainer, model, data or optimiser does not know."""


@dataclass(frozen=True)
class Recipe:
    """A recipe, at the paper's scale or at a small one.

    Attributes:
        name: its path without ``.yaml``, such as ``cooijmans2016/pmnist-bn``.
        about: ``title``, ``paper``, ``metric``, ``number`` and optionally ``note``; with
            ``--scale small`` also ``small``, a note on the reduced sizes.
        config: the configuration for LightningCLI.
        scale: ``"paper"`` or ``"small"``.
        search: for ``rnnorm search``, or None: the number of ``trials``, and ``space``, a range for
            each option of LightningCLI.
    """

    name: str
    about: dict[str, Any]
    config: dict[str, Any]
    scale: str = "paper"
    search: dict[str, Any] | None = None


def recipe_names() -> list[str]:
    """List the names of all recipes in the package."""
    return sorted(
        path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.yaml")
    )


def read_recipe(name: str, scale: str = "paper") -> Recipe:
    """Read a recipe of the package by its name, or a user's recipe by its path.

    Args:
        name: such as ``cooijmans2016/pmnist-bn``, or a path that ends with ``.yaml`` or ``.yml``.
        scale: ``"paper"``, or ``"small"``, which trains within minutes on two cores.

    Raises:
        ValueError: if the recipe or the scale is unknown, the file is not a recipe, or one of its
            keys would have no effect.
    """
    if scale not in ("paper", "small"):
        raise ValueError(f"scale must be 'paper' or 'small', got {scale!r}")
    config = _with_base(name)
    about, small = dict(config.pop("about", None) or {}), config.pop("small", None)
    search = config.pop("search", None)
    if scale == "small":
        if small is None:
            raise ValueError(f"recipe {name} has no small scale")
        about["small"] = small["note"]
        config = _merge(config, {key: value for key, value in small.items() if key != "note"})
        _check(config, recipe_file(name))
    _refuse_without_effect(config, name)
    return Recipe(name, about, config, scale, search)


def recipe_file(name: str) -> Path:
    """Return the file of a recipe.

    Raises:
        ValueError: if the recipe is unknown.
    """
    path = Path(name) if name.endswith(ENDINGS) else FOLDER / f"{name}.yaml"
    if not file_exists(path):
        raise ValueError(_unknown(name))
    return path


def read_config(path: Path) -> dict[str, Any]:
    """Read the configuration for LightningCLI from a file.

    Raises:
        ValueError: if the file is not YAML, or has no model or no data.
    """
    return _check(read_yaml(path), path)


def check_keys(key: str, given: dict[str, Any], path: Path) -> None:
    """Check the values under ``about``, ``small`` or ``search``, in a recipe or a run's copy.

    Raises:
        ValueError: if a key is unknown or missing, a value has a wrong type, or a number lacks its
            metric.
    """
    # beside its note, small holds changes of the recipe's own keys
    unknown = [] if key == "small" else [name for name in given if name not in _TYPES[key]]
    if unknown:
        raise ValueError(
            f"{path}: {key} has no {_short(unknown[0])}: it takes {', '.join(_TYPES[key])}"
        )
    if missing := [name for name in _NEEDED.get(key, ()) if name not in given]:
        raise ValueError(f"{path}: {key} lacks {', '.join(missing)}")
    for name, kind in _TYPES[key].items():
        # isinstance takes a bool for an int
        wrong = isinstance(given.get(name), bool) or not isinstance(given.get(name), kind)
        if name in given and wrong:
            what = getattr(kind, "__name__", "a number")
            raise ValueError(f"{path}: {key}.{name} must be {what}, got {_short(given[name])}")
    number = given.get("number") if key == "about" else None
    if number is not None and not -math.inf < number < math.inf:
        raise ValueError(f"{path}: about.number must be a finite number, got {number}")
    if number is not None and "metric" not in given:
        raise ValueError(f"{path}: about.number is given, and about lacks metric, what it is of")


def _with_base(name: str, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read a recipe's keys, merged over those of the recipes it is based on."""
    path = recipe_file(name)
    if name in above:
        raise ValueError(f"recipe {name} is based on itself: {' on '.join([*above, name])}")
    config = read_yaml(path, trusted=path.is_relative_to(FOLDER))
    base = config.pop("base", None) if isinstance(config, dict) else None
    if base is not None:
        if not isinstance(base, str):
            raise ValueError(f"{path}: base must be the name of a recipe, got {_short(base)}")
        if base.endswith(ENDINGS):
            base = os.path.normpath(path.parent / base)
        config = _merge(_with_base(base, (*above, name)), config)
    return _check(config, path)


def _check(config: Any, path: Path) -> dict[str, Any]:
    """Check the types of a configuration's parts and return it."""
    if not isinstance(config, dict) or None in (config.get("model"), config.get("data")):
        raise ValueError(f"{path} is not a recipe: it needs the keys 'model' and 'data'")
    for key in ("trainer", "model", "data"):
        part = config.get(key, {})
        if key != "trainer" and isinstance(part, str):
            continue
        if not isinstance(part, dict):
            raise ValueError(f"{path}: {key} must be keys and values, got {_short(part)}")
        arguments = part.get("init_args", {})
        if not isinstance(arguments, dict | None):
            raise ValueError(
                f"{path}: {key}.init_args must be keys and values, got {_short(arguments)}"
            )
    for key in _TYPES:
        given = config.get(key)
        if given is None:
            continue
        if not isinstance(given, dict):
            raise ValueError(f"{path}: {key} must be keys and values, got {_short(given)}")
        check_keys(key, given, path)
    return config


def _refuse_without_effect(config: dict[str, Any], name: str) -> None:
    """Refuse options that only fit sets, and a seed of the data that differs from the one seed."""
    trainer = config.get("trainer", {})
    if given := [key for key in FROM_FIT if trainer.get(key) is not None]:
        raise ValueError(f"{name}: trainer.{given[0]} {NO_EFFECT}")
    data = config["data"]
    seed = None if isinstance(data, str) else (data.get("init_args") or {}).get("seed")
    if seed is not None and seed != config.get("seed_everything", 1):
        raise ValueError(
            f"{name}: data.init_args.seed {ONE_SEED}, seed_everything, got {_short(seed)}"
        )


def _short(value: object) -> str:
    """Return the first 80 characters of a value's repr."""
    return f"{value!r:.80}"


def _unknown(name: str) -> str:
    """Return the error for an unknown recipe, with the nearest names."""
    if name and Path(name).exists():
        what = "folder" if Path(name).is_dir() else "file"
        return f"{name} is a {what}, and no recipe: one of your own ends with .yaml"
    names = recipe_names()
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    last = name.rsplit("/", 1)[-1]
    near += [n for n in names if last and last in n and n not in near]
    first, slash, _ = name.partition("/")
    papers = {n.partition("/")[0] for n in names}
    is_path = name.endswith(ENDINGS)
    if is_path or (slash and not difflib.get_close_matches(first, papers)):
        return f"there is no file or folder {name}"
    listed = nearest(near[:5]) or ": rnnorm recipes lists them"
    return f"no recipe is called {name!r}{listed}"


def _merge(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return ``base`` with the values of ``change``, key by key in nested dictionaries."""
    merged = dict(base)
    for key, value in change.items():
        inner = merged.get(key)
        if isinstance(value, dict) and isinstance(inner, dict) and not _replaces(value, inner):
            merged[key] = _merge(inner, value)
        else:
            merged[key] = value
    return merged


def _replaces(change: dict[str, Any], base: dict[str, Any]) -> bool:
    """Tell whether a change leaves nothing of the base: another class, or another kind of range."""
    other_class = change.get("class_path", base.get("class_path")) != base.get("class_path")
    return other_class or ("choices" in change) != ("choices" in base)


# limits on bytes and on values with aliases expanded: nine nested aliases make a billion values
_LIMIT = 1 << 18
_MOST_VALUES = 10_000
# YAML 1.2's numbers, since PyYAML reads 1e-4, .5e3 and 010 as text, text and 8; underscores as
# in PyYAML
_INT, _FLOAT, _DATE = (f"tag:yaml.org,2002:{name}" for name in ("int", "float", "timestamp"))
_NUMBERS = {
    _INT: r"[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+",
    _FLOAT: r"[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}


def _with_numbers(base: Any) -> Any:
    """Derive a YAML loader or dumper that takes ``_NUMBERS`` for numbers and dates for text."""
    known = {
        first: [(tag, pattern) for tag, pattern in of if tag not in (*_NUMBERS, _DATE)]
        for first, of in base.yaml_implicit_resolvers.items()
    }
    made = type(base.__name__, (base,), {"yaml_implicit_resolvers": known})
    for tag, pattern in _NUMBERS.items():
        made.add_implicit_resolver(tag, re.compile(rf"(?:{pattern})\Z"), [*"-+.0123456789"])  # type: ignore[attr-defined]
    return made


def _whole_number(loader: Any, node: Any) -> int:
    """Construct an integer of any base from a YAML scalar."""
    text = loader.construct_scalar(node).replace("_", "")
    return int(text, 0 if text[:2] in ("0o", "0x") else 10)


#: the loader of all YAML in this package, jsonargparse's included
YamlLoader: Any = _with_numbers(yaml.SafeLoader)
# several times as fast if PyYAML has it; deep nesting can crash it
_FastLoader: Any = _with_numbers(getattr(yaml, "CSafeLoader", yaml.SafeLoader))
# quotes text that would be read as a number
_Dumper: Any = _with_numbers(yaml.SafeDumper)
for _loader in (YamlLoader, _FastLoader):
    _loader.add_constructor(_INT, _whole_number)
_Dumper.add_multi_representer(enum.Enum, lambda dumper, of: dumper.represent_data(of.value))


def dump_yaml(value: Any) -> str:
    """Return plain types as YAML that loads as equal values, keys in their order."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


def read_yaml(path: Path, trusted: bool = False) -> Any:
    """Read a YAML file.

    Args:
        path: the file.
        trusted: whether the file comes with the package.

    Raises:
        ValueError: if the file is not YAML, or too large; the message names it.
        FileNotFoundError: if the file does not exist.
    """
    data = unpack(path, "", _LIMIT)
    try:
        # given bytes, PyYAML reports undecodable text as its own error
        loader = (_FastLoader if trusted else YamlLoader)(data)
        node = loader.get_single_node()
        if (values := _values(node, {})) > (most := raised_limit(_MOST_VALUES)):
            raise ValueError(
                f"it has {values:,} values, more than the limit of {most:,}; {how_to_raise()}"
            )
        return None if node is None else loader.construct_document(node)
    # PyYAML leaks Python's errors for bad tags
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not YAML: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is not YAML that can be read: it is nested too deeply") from None


def _values(node: Any, known: dict[int, int]) -> int:
    """Count the values of a node, those of an alias at each use."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        # a node that contains itself is refused as too large
        known[id(node)] = raised_limit(_MOST_VALUES) + 1
        parts = node.value
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in parts for part in pair]
        known[id(node)] = 1 + sum(_values(part, known) for part in parts)
    return known[id(node)]
