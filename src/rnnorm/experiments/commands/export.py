"""The command ``rnnorm export``."""

from __future__ import annotations

import importlib.util
from argparse import ArgumentParser
from typing import Any

from rnnorm.experiments.commands import options

HELP = "write a trained model as one file that runs elsewhere"
USAGE = ("RUN --out FILE [options]", "RECIPE --ckpt FILE --out FILE [options]")


def add_options(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`rnnorm.experiments.trained.export.export`."""
    own = options.Arguments(parser, "trained.export.export")
    own.word("run", "RUN", type=options.recipe_or_run)
    own.option("checkpoint", "FILE", "--ckpt")
    own.option("format")
    own.option("out", "FILE", required=True)
    own.option("data_dir", "DIR")
    own.option("scale", choices=options.SCALES)
    options.trust(parser)
    options.overrides_of_a_run(parser)


def refuse(**given: Any) -> None:
    """Refuse a format whose packages are missing.

    Raises:
        ValueError: if a package is missing.
    """
    if given["format"] == "onnx":
        missing = [n for n in ("onnxscript", "onnxruntime") if importlib.util.find_spec(n) is None]
        if missing:
            raise ValueError(
                f'it needs {", ".join(missing)}: pip install ".[export]" in a clone of rnnorm'
            )


def run(**given: Any) -> None:
    """Export the model and print where it is."""
    from rnnorm.experiments.trained.export import export

    export(**given)
    print(f"model: {given['out']}, how to use it: {given['out']}.json")
