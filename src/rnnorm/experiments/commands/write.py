"""``rnnorm write``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from rnnorm.experiments.commands import options

HELP = "let a trained model continue a text, or transcribe recordings"
USAGE = ("RUN [options]", "RUN WAV ... [options]", "RECIPE --ckpt FILE [WAV ...] [options]")


def add_options(parser: ArgumentParser) -> None:
    """Those of ``write`` and ``transcribe`` in :mod:`rnnorm.experiments.measuring`."""
    options.trained(parser)
    parser.add_argument(
        "recordings", metavar="WAV", nargs="*", help="recordings to transcribe, a line each"
    )
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
    parser.add_argument(
        "--beam",
        metavar="N",
        type=int,
        help="prefixes that a transcription keeps (the model's own, else 1: the best path)",
    )
    options.overrides(parser)


def run(**given: Any) -> None:
    """Write, a text a line."""
    from rnnorm.experiments.training.words import checkpoint_of

    # before torch is imported
    given["checkpoint"] = checkpoint_of(given["run"], given["checkpoint"])
    beam = given.pop("beam")
    if given["recordings"]:
        from rnnorm.experiments.measuring.transcribing import transcribe

        names = ("run", "recordings", "checkpoint", "scale", "overrides")
        written = transcribe(**{name: given[name] for name in names}, beam=beam)
    else:
        from rnnorm.experiments.measuring.writing import write

        del given["recordings"]
        written = write(**given)
    print("\n".join(written))
