"""``rnnorm write``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from rnnorm.experiments.commands import options

HELP = "let a trained language model continue a beginning"
USAGE = ("RUN [options]", "RECIPE --ckpt FILE [options]")


def add_options(parser: ArgumentParser) -> None:
    """Those of :func:`rnnorm.experiments.measuring.writing.write`."""
    options.trained(parser)
    options.scale(parser)
    parser.add_argument(
        "--begin",
        metavar="TEXT",
        nargs="+",
        default=["the"],
        dest="beginnings",
        help="what to continue (the)",
    )
    parser.add_argument(
        "--temperature",
        metavar="T",
        type=float,
        default=1.0,
        help="divides the scores (1); 0 for the most probable symbol each time",
    )
    parser.add_argument(
        "--sentences", metavar="N", type=int, default=1, help="how many of each beginning (1)"
    )
    options.draws(parser)
    parser.add_argument(
        "--max-length",
        metavar="N",
        type=int,
        default=400,
        help="stop after so many symbols where no end comes (400)",
    )
    options.overrides(parser)


def run(**given: Any) -> None:
    """Write, a text a line."""
    from rnnorm.experiments.training.words import checkpoint_of

    # before torch is imported
    given["checkpoint"] = checkpoint_of(given["run"], given["checkpoint"])
    from rnnorm.experiments.measuring.writing import write

    print("\n".join(write(**given)))
