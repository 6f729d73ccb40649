"""The command ``rnnorm search``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from rnnorm.experiments.commands import options

HELP = "train a recipe with options drawn at random from its ranges"
USAGE = ("RECIPE --out DIR [options]", "--storage URL --status")


def add_options(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`rnnorm.experiments.searching.search.search`."""
    parser.add_argument(
        "recipe", metavar="RECIPE", nargs="?", type=options.recipe_name, help="what to train"
    )
    parser.add_argument("--out", metavar="DIR", help="run folders, and the study; it goes on there")
    options.data_dir(parser)
    options.scale(parser)
    parser.add_argument("--trials", metavar="N", type=int, help="how many (the recipe's number)")
    parser.add_argument(
        "--epochs", metavar="N", type=int, help="epochs of each trial (the recipe's number)"
    )
    options.draws(parser)
    parser.add_argument(
        "--storage",
        metavar="URL",
        help="a study that several processes work on: journal:FILE, sqlite:///FILE, postgresql://…",
    )
    parser.add_argument(
        "--workers", metavar="N", type=int, default=1, help="processes to start here (1)"
    )
    parser.add_argument(
        "--lease",
        metavar="SECONDS",
        type=float,
        default=60.0,
        help="silence after which a process counts as dead, and its trial is taken up (60)",
    )
    parser.add_argument(
        "--pruner", choices=("median", "hyperband"), help="end trials early that promise little"
    )
    parser.add_argument("--status", action="store_true", help="say what a storage's workers do")
    options.trust(parser)
    but = ", but those that the search draws"
    options.overrides(parser, "--trainer.gradient_clip_val=5 --model.hidden_size=50", but)


def run(**given: Any) -> None:
    """Run the trials and print them, or with ``--status`` print what a storage's workers do.

    Raises:
        ValueError: if an option that is needed is missing.
    """
    if given.pop("status"):
        if given["storage"] is None:
            raise ValueError("--status needs --storage URL")
        from rnnorm.experiments.searching.lease import status

        print(status(given["storage"]))
        return
    for name, wanted in (("recipe", "a recipe"), ("out", "--out DIR")):
        if given[name] is None:
            raise ValueError(f"search needs {wanted}: rnnorm search RECIPE --out DIR")
    from rnnorm.experiments.searching.search import search
    from rnnorm.experiments.training.machine import flush_subnormals

    flush_subnormals()
    print(search(**given).table())
