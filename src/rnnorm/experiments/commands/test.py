"""The command ``rnnorm test``."""

from __future__ import annotations

from argparse import ArgumentParser
from functools import partial
from typing import Any

from rnnorm.experiments.commands import options

HELP = "measure a trained model on the test set"
USAGE = ("RUN [options]", "RECIPE --ckpt FILE [options]")


def add_options(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`rnnorm.experiments.trained.test.measure`."""
    options.trained(parser)
    options.data_dir(parser)
    options.scale(parser)
    parser.add_argument(
        "--estimate",
        action="store_true",
        help="first take the population statistics anew, exactly, over the training set",
    )
    parser.add_argument(
        "--statistics",
        choices=("population", "batch"),
        help="which ones normalise (both, where there are several rows)",
    )
    parser.add_argument(
        "--lengths",
        metavar="N",
        type=int,
        nargs="+",
        default=[],
        help="measure on windows of each of these lengths (texts read in windows alone)",
    )
    options.trust(parser)
    options.overrides_of_a_run(parser)


def run(**given: Any) -> None:
    """Measure the model on the test set and print each score."""
    from rnnorm.experiments.trained.test import measure

    # scores are printed before they are written, since writing may fail
    measure(**given, tell=partial(print, flush=True))
