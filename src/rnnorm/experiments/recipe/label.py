"""Labels of a training: its recipe's name, and the options that differ from the recipe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rnnorm.experiments.recipe.options import option_name

# options of duration, place, speed and number of processes do not change a label; the seed is
# shown apart
_NOT_IN_LABEL = (
    "accelerator",
    "data_dir",
    "devices",
    "eval_batch_size",
    "log_every_n_steps",
    "max_epochs",
    "max_steps",
    "max_time",
    "min_epochs",
    "min_steps",
    "num_nodes",
    "seed",
    "seed_everything",
    "strategy",
)


def changes(
    overrides: Iterable[str], scale: str = "paper", start: str | None = None
) -> tuple[str, ...]:
    """List a training's differences from its recipe, such as ``("norm=layer", "lr=0.01")``.

    Args:
        overrides: options of LightningCLI; the last of repeated ones counts.
        scale: ``"small"`` counts as a difference.
        start: the checkpoint that training started from; adds ``"start="`` and the name of its run
            folder, or of the file outside one.
    """
    changed = [f"{name.rpartition('.')[2]}={value}" for name, value in _label_options(overrides)]
    begun = [] if start is None else [f"start={_parts(start)[0]}"]
    return (*(["small"] if scale == "small" else []), *changed, *begun)


def whole_changes(overrides: Iterable[str], start: str | None = None) -> tuple[str, ...]:
    """List the differences by whole option names, such as ``("model.norm=layer",)``."""
    changed = [f"{name}={value}" for name, value in _label_options(overrides)]
    return (*changed, *([] if start is None else [f"start={'/'.join(_parts(start))}"]))


def _label_options(overrides: Iterable[str]) -> list[tuple[str, str]]:
    """Return the overrides that belong to a label, as names and values."""
    given = {option_name(option): _normalized(option.partition("=")[2]) for option in overrides}
    return [(n, value) for n, value in given.items() if n.rpartition(".")[2] not in _NOT_IN_LABEL]


def _normalized(value: str) -> str:
    """Spell a number in one way: ``1e-3`` becomes ``0.001``."""
    try:
        return f"{float(value):.15g}".replace("e+", "e")
    except ValueError:
        return value


def _parts(start: str) -> tuple[str, ...]:
    """Return a checkpoint's path from its run folder on, or its file name outside a run."""
    parts = Path(start).parts
    return parts[-3:] if parts[-2:-1] == ("checkpoints",) else parts[-1:]


def changes_of(about: Mapping[str, Any]) -> tuple[str, ...]:
    """List a run's differences from its recipe, by its ``run.json``."""
    return changes(about.get("overrides", ()), about["scale"], about.get("start"))


def run_label(about: Mapping[str, Any]) -> str:
    """Return a run's label by its ``run.json``: the recipe and the differences from it."""
    return ", ".join([about["recipe"], *changes_of(about)])


def differences(
    one: Any, two: Any, path: str = "", template: str = "is {!r} and {!r}"
) -> Iterator[str]:
    """Yield the differences of two configurations: ``data.init_args.length is 50 and 100``.

    Args:
        one: the first configuration, or a part of it.
        two: the second configuration, or the same part of it.
        path: the option name of the two parts.
        template: format string for the two values.
    """
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        for key in [*one, *(k for k in two if k not in one)]:
            inner = f"{path}.{key}".lstrip(".")
            yield from differences(one.get(key), two.get(key), inner, template)
    elif one != two:
        yield f"{path} {template.format(one, two)}"
