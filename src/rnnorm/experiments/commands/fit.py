"""The command ``rnnorm fit``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from rnnorm.experiments.commands import options
from rnnorm.experiments.console import check_at_least

HELP = "train a recipe"
USAGE = ("RECIPE [options]", "--resume RUN [options]")


def add_options(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`rnnorm.experiments.training.fit.fit`."""
    own = options.Arguments(parser, "training.fit.fit")
    own.word("recipe", "RECIPE", nargs="?", type=options.recipe_name)
    own.option("data_dir", "DIR")
    own.option("scale", choices=options.SCALES)
    own.option("epochs", "N")
    own.option("lr", "X")
    own.option("batch_size", "N")
    own.option("seed", "N")
    own.option("run_dir", "DIR")
    own.option("resume", "RUN", type=options.run_folder)
    own.option("start", "RUN")
    own.option("every_n_steps", "N", "--checkpoint-every")
    own.option("samples", "N")
    options.trust(parser)
    options.overrides(parser)


def refuse(**given: Any) -> None:
    """Refuse arguments that name nothing to train, or a number that is too small.

    Raises:
        ValueError: if neither a recipe nor a run to resume is named, or a number is too small.
    """
    # fit would name its own arguments
    check_at_least(1, **{"--checkpoint-every": given["every_n_steps"]})
    check_at_least(0, **{"--samples": given["samples"]})
    if given["recipe"] is None and given["resume"] is None:
        raise ValueError("fit needs a recipe, or the run to resume: rnnorm fit --resume RUN")


def run(**given: Any) -> None:
    """Train a recipe or resume a run, and print the best score."""
    from rnnorm.experiments.training.fit import fit
    from rnnorm.experiments.training.machine import flush_subnormals
    from rnnorm.experiments.training.processes import is_first

    flush_subnormals()
    run = fit(**given)
    if is_first():
        print(run.summary())
