"""What a training is called: its recipe, and where it differs from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rnnorm.experiments.recipe.options import option_name

# how long, where and how fast it trains, and the seed, which is told apart; several processes
# share the minibatches and the statistics of one
_NOT_TOLD = (
    "accelerator",
    "data_dir",
    "devices",
    "eval_batch_size",
    "log_every_n_steps",
    "max_epochs",
    "max_steps",
    "num_nodes",
    "seed",
    "seed_everything",
)


def changes(
    overrides: Iterable[str], scale: str = "paper", start: str | None = None
) -> tuple[str, ...]:
    """What makes a training another one than its recipe's, such as ``("norm=layer", "lr=0.01")``.

    Args:
        overrides: options of LightningCLI; the later one of two counts.
        scale: ``"small"`` is a change too.
        start: the checkpoint that it begins with is one too: ``"start="`` and its run folder's
            name, or its own outside one.
    """
    told = [f"{name.rpartition('.')[2]}={value}" for name, value in _told(overrides)]
    begun = [] if start is None else [f"start={_parts(start)[0]}"]
    return (*(["small"] if scale == "small" else []), *told, *begun)


def whole_changes(overrides: Iterable[str], start: str | None = None) -> tuple[str, ...]:
    """The same by whole names, such as ``("model.norm=layer",)``, as two may end in one word."""
    told = [f"{name}={value}" for name, value in _told(overrides)]
    return (*told, *([] if start is None else [f"start={'/'.join(_parts(start))}"]))


def _told(overrides: Iterable[str]) -> list[tuple[str, str]]:
    given = {option_name(option): _spelt(option.partition("=")[2]) for option in overrides}
    return [(n, value) for n, value in given.items() if n.rpartition(".")[2] not in _NOT_TOLD]


def _spelt(value: str) -> str:
    """A number in one way: ``1e-3`` is ``0.001``."""
    try:
        return f"{float(value):.15g}".replace("e+", "e")
    except ValueError:
        return value


def _parts(start: str) -> tuple[str, ...]:
    """A checkpoint's run folder and its place there, or its own name outside one."""
    parts = Path(start).parts
    return parts[-3:] if parts[-2:-1] == ("checkpoints",) else parts[-1:]


def changes_of(about: Mapping[str, Any]) -> tuple[str, ...]:
    """The same, out of a ``run.json``."""
    return changes(about.get("overrides", ()), about["scale"], about.get("start"))


def run_label(about: Mapping[str, Any]) -> str:
    """What a run is called, by its ``run.json``."""
    return ", ".join([about["recipe"], *changes_of(about)])


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
