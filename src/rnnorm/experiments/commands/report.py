"""The command ``rnnorm report``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from rnnorm.experiments.commands import options

HELP = "write one page about runs: curves, table beside the paper, diagnostics"
USAGE = ("RUN ... [options]",)


def add_options(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`rnnorm.experiments.reporting.report.report`."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        type=options.run_folder,
        help="run folders, and folders that compare wrote",
    )
    options.data_dir(parser, "the training's without it")
    parser.add_argument(
        "--out", metavar="FILE", default="runs/report.html", help="the page (runs/report.html)"
    )
    options.trust(parser)


def run(**given: Any) -> None:
    """Write the page and print where it is."""
    from rnnorm.experiments.reporting.report import report

    print(f"page: {report(**given)}")
