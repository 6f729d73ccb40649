"""The command ``rnnorm search``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from rnnorm.experiments.commands import options

HELP = "train a recipe with options drawn at random from its ranges"
USAGE = ("RECIPE --out DIR [options]", "--storage URL --status")


def add_options(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`rnnorm.experiments.searching.search.search`."""
    own = options.Arguments(parser, "searching.search.search")
    own.word("recipe", "RECIPE", nargs="?", type=options.recipe_name)
    own.option("out", "DIR")
    own.option("data_dir", "DIR")
    own.option("scale", choices=options.SCALES)
    own.option("trials", "N")
    own.option("epochs", "N")
    own.option("seed", "N", type=options.seed)
    own.option("storage", "URL")
    own.option("workers", "N")
    own.option("lease", "SECONDS")
    own.option("pruner")
    parser.add_argument(
        "--status", action="store_true", help="print the state of the studies in a storage"
    )
    options.trust(parser)
    but = ", except those that the search draws"
    options.overrides(parser, "--trainer.gradient_clip_val=5 --model.hidden_size=50", but)


def refuse(**given: Any) -> None:
    """Refuse arguments of which one that is needed is missing.

    Raises:
        ValueError: if one is missing.
    """
    if given["status"]:
        if given["storage"] is None:
            raise ValueError("--status needs --storage URL")
        return
    for name, wanted in (("recipe", "a recipe"), ("out", "--out DIR")):
        if given[name] is None:
            raise ValueError(f"search needs {wanted}: rnnorm search RECIPE --out DIR")


def run(**given: Any) -> None:
    """Run the trials and print them, or with ``--status`` print what a storage's workers do."""
    if given.pop("status"):
        from rnnorm.experiments.searching.lease import status

        print(status(given["storage"]))
        return
    from rnnorm.experiments.searching.search import search
    from rnnorm.experiments.training.machine import flush_subnormals

    flush_subnormals()
    print(search(**given).table())
