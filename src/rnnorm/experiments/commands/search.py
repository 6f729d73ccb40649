"""``rnnorm search``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from rnnorm.experiments.commands import options

HELP = "train a recipe with options drawn at random from the paper's ranges"
USAGE = ("RECIPE --out DIR [options]",)


def add_options(parser: ArgumentParser) -> None:
    """Those of :func:`rnnorm.experiments.searching.search.search`."""
    parser.add_argument("recipe", metavar="RECIPE", type=options.recipe_name, help="what to train")
    parser.add_argument("--out", metavar="DIR", required=True, help="the study; it goes on there")
    options.data_dir(parser)
    options.scale(parser)
    parser.add_argument("--trials", metavar="N", type=int, help="how many (the paper's number)")
    parser.add_argument("--epochs", metavar="N", type=int, help="epochs of each trial")
    options.draws(parser)
    options.overrides(parser)


def run(**given: Any) -> None:
    """Search, and print the trials."""
    from rnnorm.experiments.searching.search import search

    print(search(**given).table())
