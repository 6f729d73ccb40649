"""The command ``rnnorm report``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from rnnorm.experiments.commands import options

HELP = "write one page about runs: curves, a table with the papers' numbers, diagnostics"
USAGE = ("RUN ... [options]",)


def add_options(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`rnnorm.experiments.reporting.report.report`."""
    own = options.Arguments(parser, "reporting.report.report")
    own.word("runs", "RUN", type=options.run_folder)
    own.option("data_dir", "DIR")
    own.option("out", "FILE")
    options.trust(parser)


def run(**given: Any) -> None:
    """Write the page and print where it is."""
    from rnnorm.experiments.reporting.report import report

    print(f"page: {report(**given)}")
