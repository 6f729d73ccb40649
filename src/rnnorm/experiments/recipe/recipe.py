"""Recipes: one YAML file for each row of a paper's table, run by LightningCLI.

A recipe has the keys of LightningCLI, and some of its own: ``about`` says what the row is and which
number the paper has for it, ``small`` holds what ``--scale small`` changes, ``search`` the ranges
of the options that the paper drew at random. With ``base`` it names another recipe, and the rest is
what differs from it.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rnnorm.experiments.files import file_exists, how_to_raise, raised_limit, unpack

FOLDER = Path(__file__).parents[1] / "recipes"
#: how the name of a recipe of a user's own ends, a path
ENDINGS = (".yaml", ".yml")
#: arguments of the trainer that every training has from fit
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
# the keys of a recipe's own, and within them, that are of one type
_TYPES: dict[str, dict[str, Any]] = {
    "about": dict.fromkeys(("title", "paper", "metric", "note", "small"), str)
    | {"number": _NUMBER},
    "small": {"note": str},
    "search": {"trials": int, "space": dict},
}
_NEEDED = {"small": ("note",), "search": ("trials", "space")}


class OverrideError(ValueError):
    """An override is none that the recipe's trainer, model, data or optimiser knows."""


@dataclass(frozen=True)
class Recipe:
    """A recipe, at the paper's scale or at a small one.

    Attributes:
        name: its path without ``.yaml``, such as ``cooijmans2016/pmnist-bn``.
        about: ``title``, ``paper``, ``metric``, ``number`` and perhaps ``note``; with
            ``--scale small`` also ``small``, which says what was made smaller.
        config: what LightningCLI reads.
        scale: ``"paper"`` or ``"small"``.
        search: what ``rnnorm search`` draws from, or None: the number of ``trials``, and ``space``,
            a range for each option of LightningCLI.
    """

    name: str
    about: dict[str, Any]
    config: dict[str, Any]
    scale: str = "paper"
    search: dict[str, Any] | None = None


def recipe_names() -> list[str]:
    """Names of all recipes that come with the package."""
    return sorted(
        path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.yaml")
    )


def read_recipe(name: str, scale: str = "paper") -> Recipe:
    """Read a recipe by its name, or by the path of a file of one's own.

    Args:
        name: such as ``cooijmans2016/pmnist-bn``, or a path that ends with ``.yaml``.
        scale: ``"paper"``, or ``"small"`` for one that ends within minutes on two cores.

    Raises:
        ValueError: there is no such recipe or scale, the file is no recipe, or something in it
            would be without effect.
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
    """The file of a recipe.

    Raises:
        ValueError: there is no such recipe.
    """
    path = Path(name) if name.endswith(ENDINGS) else FOLDER / f"{name}.yaml"
    if not file_exists(path):
        raise ValueError(_unknown(name))
    return path


def read_config(path: Path) -> dict[str, Any]:
    """Read what LightningCLI is given from a file.

    Raises:
        ValueError: the file is not YAML, or has no model and data.
    """
    return _check(read_yaml(path), path)


def check_keys(key: str, given: dict[str, Any], path: Path) -> None:
    """Check what stands under a key of a recipe's own, or in a run's copy of it.

    Raises:
        ValueError: something is missing or of another type, or a number lacks what it is of.
    """
    if missing := [name for name in _NEEDED.get(key, ()) if name not in given]:
        raise ValueError(f"{path}: {key} lacks {', '.join(missing)}")
    for name, kind in _TYPES[key].items():
        # true is a number to python
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
    """A recipe's keys, with those of the recipes that it is based on, by name or beside it."""
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
    if not isinstance(config, dict) or None in (config.get("model"), config.get("data")):
        raise ValueError(f"{path} is no recipe: it needs the keys 'model' and 'data'")
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
    """Refuse what every training has from elsewhere."""
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
    return f"{value!r:.80}"


def _unknown(name: str) -> str:
    if name and Path(name).exists():
        what = "folder" if Path(name).is_dir() else "file"
        return f"{name} is a {what}, and no recipe: one of your own ends with .yaml"
    names = recipe_names()
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    last = name.rsplit("/", 1)[-1]
    near += [n for n in names if last and last in n and n not in near]
    first, slash, _ = name.partition("/")
    papers = {n.partition("/")[0] for n in names}
    own = name.endswith(ENDINGS)
    if own or (slash and not difflib.get_close_matches(first, papers)):
        return f"there is no file or folder {name}"
    listed = f"the nearest are {', '.join(near[:5])}" if near else "rnnorm recipes lists them"
    return f"no recipe is called {name!r}: {listed}"


def _merge(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in change.items():
        inner = merged.get(key)
        if isinstance(value, dict) and isinstance(inner, dict) and not _other_class(inner, value):
            merged[key] = _merge(inner, value)
        else:
            merged[key] = value
    return merged


def _other_class(base: dict[str, Any], change: dict[str, Any]) -> bool:
    """Whether a change names another class, which has arguments of its own."""
    return change.get("class_path", base.get("class_path")) != base.get("class_path")


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
        if (values := _values(node, {})) > (most := raised_limit(_MOST_VALUES)):
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
        known[id(node)] = raised_limit(_MOST_VALUES) + 1
        parts = node.value
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in parts for part in pair]
        known[id(node)] = 1 + sum(_values(part, known) for part in parts)
    return known[id(node)]
