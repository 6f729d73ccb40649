"""The command ``rnnorm demo``: LSTM, BN-LSTM and LN-LSTM side by side on permuted digits."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnnorm.experiments.commands import options

if TYPE_CHECKING:
    from rnnorm.experiments.trained.curve import Curve

HELP = "train LSTM, BN-LSTM and LN-LSTM side by side on digits that scikit-learn brings"
USAGE = ("[options]",)
MODELS = {"LSTM": "demo/digits-lstm", "BN-LSTM": "demo/digits-bn", "LN-LSTM": "demo/digits-ln"}


def add_options(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`demo`."""
    own = options.Arguments(parser, "commands.demo.demo")
    own.option("out", "DIR")
    own.option("picture", "FILE")
    own.option("seeds", "N")
    own.option("epochs", "N")
    options.trust(parser)
    options.overrides(parser)


def run(**given: Any) -> None:
    """Train the models of the demo and print a table."""
    from rnnorm.experiments.training.machine import flush_subnormals

    flush_subnormals()
    demo(**given)


def demo(
    out: str | Path = "runs/demo",
    *,
    picture: str | Path | None = None,
    seeds: int = 3,
    epochs: int | None = None,
    overrides: Sequence[str] = (),
) -> list[Curve]:
    """Train the three models with the same budget and seeds, print a table, draw a picture.

    Args:
        out: folder for the runs, the picture and the curves. Runs finished there are not repeated.
        picture: another place for the picture.
        seeds: number of seeds of each model, from 1 on.
        epochs: epochs of each training; 25 by default, as in the recipes.
        overrides: options of LightningCLI for all trainings.

    Returns:
        A curve for each model and seed.

    Raises:
        ValueError: if ``seeds`` or ``epochs`` is less than 1, or ``out`` holds other trainings.
        NotADirectoryError: if ``out`` is a file.
    """
    from rnnorm.experiments.comparing.compare import compare

    print(
        "Permuted digits: 1257 images read as 64 pixels in one fixed random order. Seeds of each "
        f"model: {seeds}",
        flush=True,
    )
    curves = compare(
        list(MODELS.values()),
        out,
        names=list(MODELS),
        seeds=seeds,
        epochs=epochs,
        overrides=overrides,
        title="Permuted digits, one pixel a step: LSTM with and without normalisation",
        picture=picture,
    )
    print("next, on real MNIST: rnnorm fit cooijmans2016/pmnist-bn --scale small")
    return curves
