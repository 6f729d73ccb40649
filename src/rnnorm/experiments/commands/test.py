"""The command ``rnnorm test``."""

from __future__ import annotations

from argparse import ArgumentParser
from functools import partial
from typing import Any

from rnnorm.experiments.commands import options

HELP = "measure a trained model on the test set"
USAGE = ("RUN ... [options]", "RECIPE --ckpt FILE [options]")


def add_options(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`rnnorm.experiments.trained.test.measure`."""
    own = options.Arguments(parser, "trained.test.measure")
    own.word("run", "RUN", type=options.recipe_or_run)
    own.word("beside", "RUN", nargs="*", type=options.run_folder)
    own.option("checkpoint", "FILE", "--ckpt")
    own.option("data_dir", "DIR")
    own.option("scale", choices=options.SCALES)
    own.option("estimate")
    own.option("statistics")
    own.option("lengths", "N")
    options.trust(parser)
    options.overrides_of_a_run(parser, by_trainer=True)


def run(**given: Any) -> None:
    """Measure the model on the test set and print each score."""
    from rnnorm.experiments.trained.test import measure

    # scores are printed before they are written, since writing may fail
    measure(**given, tell=partial(print, flush=True))
