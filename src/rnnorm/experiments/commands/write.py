"""``rnnorm write``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from rnnorm.experiments.commands import options

HELP = "let a trained model continue a text, translate, transcribe recordings or draw"
USAGE = (
    "RUN [options]",
    "RUN WAV ... [options]",
    "RUN --out PICTURE [options]",
    "RUN --from FILE [options]",
    "RECIPE --ckpt FILE ... [options]",
)


def add_options(parser: ArgumentParser) -> None:
    """Those of ``write`` and its like in :mod:`rnnorm.experiments.measuring`."""
    options.trained(parser)
    parser.add_argument(
        "recordings", metavar="WAV", nargs="*", help="recordings to transcribe, a line each"
    )
    options.scale(parser)
    options.data_dir(parser, "the training's without it (--points alone)")
    parser.add_argument(
        "--begin",
        metavar="TEXT",
        nargs="+",
        dest="beginnings",
        help="what to continue (the); the classes to draw (all)",
    )
    parser.add_argument(
        "--from",
        metavar="FILE",
        dest="source",
        help="what to translate, a sentence a line; - for standard input",
    )
    parser.add_argument(
        "--temperature",
        metavar="T",
        type=float,
        help="divides the scores (1; 0.5 to draw); 0 for the most probable each time",
    )
    parser.add_argument(
        "--sentences",
        metavar="N",
        type=int,
        help="how many of each beginning or class (1)",
    )
    options.draws(parser)
    # one that is given is refused where nothing is drawn
    parser.set_defaults(seed=None)
    parser.add_argument(
        "--max-length",
        metavar="N",
        type=int,
        help="stop after so many symbols or points where no end comes (400; a translator's own)",
    )
    parser.add_argument(
        "--beam",
        metavar="N",
        type=int,
        help="beginnings that a transcription or translation keeps (the model's own, else 1)",
    )
    parser.add_argument("--out", metavar="PICTURE", help="draw into this .svg or .png")
    parser.add_argument(
        "--points",
        metavar="N",
        type=int,
        help="begin with the first N points of as many validation drawings (0)",
    )
    options.overrides_of_a_run(parser)


def run(**given: Any) -> None:
    """Write, a text a line, or draw."""
    _check({"WAV": given["recordings"], "--from": given["source"], "--out": given["out"]}, given)
    recordings, out = given.pop("recordings"), given.pop("out")
    beam, points = given.pop("beam"), given.pop("points")
    begin, temperature = given.pop("beginnings"), given.pop("temperature")
    source, limit = given.pop("source"), given.pop("max_length")
    data_dir, count, seed = given.pop("data_dir"), given.pop("sentences"), given.pop("seed")
    shared = {name: given[name] for name in ("run", "checkpoint", "scale", "overrides")}
    given |= {"max_length": 400 if limit is None else limit, "seed": 1 if seed is None else seed}
    count = 1 if count is None else count
    if recordings:
        from rnnorm.experiments.measuring.transcribing import transcribe

        print("\n".join(transcribe(recordings=recordings, beam=beam, **shared)))
    elif source is not None:
        from rnnorm.experiments.measuring.translating import translate

        print("\n".join(translate(source=source, beam=beam, limit=limit, **shared)))
    elif out:
        from rnnorm.experiments.measuring.drawing import draw

        warmth = 0.5 if temperature is None else temperature
        given |= {"classes": begin or (), "points": points or 0, "temperature": warmth}
        print(f"picture: {draw(out=out, count=count, data_dir=data_dir, **given)}")
    else:
        from rnnorm.experiments.measuring.writing import write

        warmth = 1.0 if temperature is None else temperature
        given |= {"sentences": count, "temperature": warmth}
        print("\n".join(write(beginnings=begin or ["the"], **given)))


def _check(asked: dict[str, Any], given: dict[str, Any]) -> None:
    """Refuse two things at once, and options that are of another.

    Raises:
        ValueError: naming them.
    """
    named = [name for name, value in asked.items() if value]
    if len(named) > 1:
        raise ValueError(f"write does one thing at a time, got {' and '.join(named)}")
    (what,) = named or ["a text"]
    for option, value, fitting in (
        ("--beam", given["beam"], ("WAV", "--from")),
        ("--begin", given["beginnings"], ("a text", "--out")),
        ("--temperature", given["temperature"], ("a text", "--out")),
        ("--sentences", given["sentences"], ("a text", "--out")),
        ("--seed", given["seed"], ("a text", "--out")),
        ("--points", given["points"], ("--out",)),
        ("--data-dir", given["data_dir"], ("--out",)),
        ("--max-length", given["max_length"], ("a text", "--from", "--out")),
    ):
        if value is not None and what not in fitting:
            raise ValueError(f"{option} is for {' or '.join(fitting)}, not for {what}")
