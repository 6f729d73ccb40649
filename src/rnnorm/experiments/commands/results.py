"""``rnnorm results``, for those who keep the page of results."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from rnnorm.experiments.commands import options

HELP = "write the page of results anew, with more runs"
USAGE = ("[RUN ...] [options]",)


def add_options(parser: ArgumentParser) -> None:
    """Those of :func:`rnnorm.experiments.reporting.results.results`."""
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help="run folders, or storages of searches, to record first",
    )
    parser.add_argument(
        "--docs", metavar="DIR", default="docs", help="holds results.md and results/ (docs)"
    )
    options.trust(parser)


def run(**given: Any) -> None:
    """Write the page, and say where it is."""
    from rnnorm.experiments.reporting.results import results

    print(results(**given))
