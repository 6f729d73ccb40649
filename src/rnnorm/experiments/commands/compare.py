"""The command ``rnnorm compare``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from rnnorm.experiments.commands import options

HELP = "train recipes with the same data and budget, and compare them"
USAGE = (
    "RECIPE|RUN RECIPE|RUN ... [options]",
    "RECIPE --vary OPTION=VALUE,VALUE,... [options]",
)


def add_options(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`rnnorm.experiments.comparing.compare.compare`."""
    own = options.Arguments(parser, "comparing.compare.compare")
    own.word("runs", "RECIPE|RUN", type=options.recipe_or_run)
    own.option("vary", "OPTION=VALUE,...")
    own.option("data_dir", "DIR")
    own.option("scale", choices=options.SCALES)
    own.option("out", "DIR")
    own.option("epochs", "N")
    own.option("lr", "X")
    own.option("batch_size", "N")
    own.option("minutes", "M")
    own.option("seeds", "N")
    own.option("reach", "S")
    options.trust(parser)
    options.overrides(parser)


def run(**given: Any) -> None:
    """Compare the recipes and runs, and print a table."""
    from rnnorm.experiments.comparing.compare import compare
    from rnnorm.experiments.training.machine import flush_subnormals

    flush_subnormals()
    compare(**given)
