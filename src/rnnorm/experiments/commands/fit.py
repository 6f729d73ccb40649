"""The command ``rnnorm fit``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from rnnorm.experiments.commands import options

HELP = "train a recipe"
USAGE = ("RECIPE [options]", "--resume RUN [options]")


def add_options(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`rnnorm.experiments.training.fit.fit`."""
    parser.add_argument(
        "recipe", metavar="RECIPE", nargs="?", type=options.recipe_name, help="what to train"
    )
    options.data_dir(parser)
    options.scale(parser)
    options.training(parser)
    parser.add_argument("--seed", metavar="N", type=int, help="of weights and data (1)")
    parser.add_argument("--run-dir", metavar="DIR", help="a new folder for this run (runs/RECIPE)")
    parser.add_argument(
        "--resume",
        metavar="RUN",
        type=options.run_folder,
        help="go on with the run in this folder",
    )
    parser.add_argument(
        "--start",
        metavar="RUN",
        help="begin with the weights of this run's best epoch, or of a .ckpt file",
    )
    parser.add_argument(
        "--checkpoint-every",
        metavar="N",
        type=int,
        default=100,
        dest="every_n_steps",
        help="steps between checkpoints, besides one after every epoch (100)",
    )
    options.trust(parser)
    options.overrides(parser)


def run(**given: Any) -> None:
    """Train a recipe or resume a run, and print the best score.

    Raises:
        ValueError: if neither a recipe nor a run to resume is named.
    """
    if given["recipe"] is None and given["resume"] is None:
        # said before torch is imported, which takes seconds
        raise ValueError("fit needs a recipe, or the run to go on with: rnnorm fit --resume RUN")
    from rnnorm.experiments.training.fit import fit
    from rnnorm.experiments.training.machine import flush_subnormals
    from rnnorm.experiments.training.processes import is_first

    flush_subnormals()
    run = fit(**given)
    if is_first():
        print(run.summary())
