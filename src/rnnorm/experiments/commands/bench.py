"""The command ``rnnorm bench``."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from rnnorm.experiments.commands import options

HELP = "time layers beside torch.nn's on this machine, or the training steps of recipes"
USAGE = ("[options]", "RECIPE ... [options]")


def add_options(parser: ArgumentParser) -> None:
    """Add the arguments of ``bench`` and ``bench_recipes`` of :mod:`rnnorm.experiments.bench`."""
    own = options.Arguments(parser, "bench.recipes.bench_recipes")
    own.word("recipes", "RECIPE", nargs="*", type=options.recipe_name)
    own.option("data_dir", "DIR")
    own.option("scale", choices=options.SCALES)
    own.option("threads", "N")
    # layers and recipes are measured for different times by default
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=float,
        help="how long to measure each line of the table (4), or each recipe (20)",
    )
    parser.add_argument(
        "--shape",
        metavar="TxBxIxH",
        action="append",
        help="time steps, rows, input size and units of the layers; may be repeated",
    )
    own.option("on_torch")
    own.option("backend", "NAME")
    own.option("out", "DIR")
    options.trust(parser)
    options.overrides(parser)


def refuse(**given: Any) -> None:
    """Refuse options that do not belong to what is timed.

    Raises:
        ValueError: if there is such an option.
    """
    if given["recipes"]:
        if given["shape"]:
            raise ValueError("--shape is of layers: leave it out, or name no recipe")
        return
    of_recipes = ("data_dir", "scale", "on_torch", "backend")
    named = [f"--{name.replace('_', '-')}" for name in of_recipes if given[name]]
    if named := [*named, *given["overrides"]]:
        raise ValueError(f"options such as {', '.join(named)} are of recipes: name one")


def run(
    recipes: Sequence[str],
    data_dir: str | None,
    scale: str | None,
    shape: Sequence[str] | None,
    overrides: Sequence[str],
    on_torch: bool,
    backend: str | None,
    **given: Any,
) -> None:
    """Time the recipes, or layers if no recipe is named, and print a table."""
    given = {name: value for name, value in given.items() if value is not None}
    if recipes:
        from rnnorm.experiments.bench.recipes import bench_recipes

        given |= {"scale": scale, "overrides": overrides, "on_torch": on_torch, "backend": backend}
        bench_recipes(recipes, data_dir=data_dir, **given)
        return
    from rnnorm.experiments.bench.bench import SHAPES, bench
    from rnnorm.experiments.bench.layers import read_shape

    bench([read_shape(text) for text in shape or ()] or SHAPES, **given)
