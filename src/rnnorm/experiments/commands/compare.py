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
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RECIPE|RUN",
        type=options.recipe_or_run,
        help="recipes, run folders, and folders that compare wrote",
    )
    parser.add_argument(
        "--vary",
        metavar="OPTION=VALUE,...",
        help="each recipe with each of these values, such as model.norm=batch,layer,none",
    )
    options.data_dir(parser)
    options.scale(parser)
    parser.add_argument(
        "--out",
        metavar="DIR",
        default="runs/compare",
        help="folder for runs, picture and curves (runs/compare)",
    )
    options.training(parser)
    parser.add_argument(
        "--minutes", metavar="M", type=float, help="budget of each, in minutes of training steps"
    )
    parser.add_argument(
        "--seeds", metavar="N", type=int, default=1, help="seeds of each recipe, from 1 on (1)"
    )
    parser.add_argument(
        "--reach",
        metavar="S",
        type=float,
        help="give steps and seconds to this score (the best of the first model)",
    )
    options.trust(parser)
    options.overrides(parser)


def run(**given: Any) -> None:
    """Compare the recipes and runs, and print a table."""
    from rnnorm.experiments.comparing.compare import compare
    from rnnorm.experiments.training.machine import flush_subnormals

    flush_subnormals()
    compare(**given)
