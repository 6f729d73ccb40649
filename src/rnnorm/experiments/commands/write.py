"""The command ``rnnorm write``."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from rnnorm.experiments.commands import options
from rnnorm.experiments.console import check_at_least

HELP = "let a trained model continue a text, translate, transcribe recordings or draw"
USAGE = (
    "RUN [options]",
    "RUN WAV ... [options]",
    "RUN --out PICTURE [options]",
    "RUN --from FILE [options]",
    "RECIPE --ckpt FILE ... [options]",
)


def add_options(parser: ArgumentParser) -> None:
    """Add the arguments of the functions in :mod:`rnnorm.experiments.trained` that write."""
    text = options.Arguments(parser, "trained.text.write")
    recording = options.Arguments(parser, "trained.transcribe.transcribe")
    translation = options.Arguments(parser, "trained.translate.translate")
    drawing = options.Arguments(parser, "trained.draw.draw")
    text.word("run", "RUN", type=options.recipe_or_run)
    text.option("checkpoint", "FILE", "--ckpt")
    recording.word("recordings", "WAV", nargs="*", default=[])
    text.option("scale", choices=options.SCALES)
    drawing.option("data_dir", "DIR")
    # a text and a drawing have different defaults
    parser.add_argument(
        "--begin",
        metavar="TEXT",
        nargs="+",
        dest="beginnings",
        help="beginnings of texts to continue (the), or classes to draw (all)",
    )
    translation.option("source", "FILE", "--from", required=False)
    parser.add_argument(
        "--temperature",
        metavar="T",
        type=float,
        help="how random to choose: divides the scores (1; 0.5 for drawings); 0 always takes the "
        "most probable",
    )
    parser.add_argument(
        "--sentences",
        metavar="N",
        type=int,
        help="number of texts of each beginning, or of drawings of each class (1)",
    )
    # None tells an option that is not given: some are refused where they have no meaning
    text.option("seed", "N", type=options.seed, default=None)
    parser.add_argument(
        "--max-length",
        metavar="N",
        type=int,
        help="most symbols of a text or points of a drawing (400; the model's limit to translate)",
    )
    recording.option("beam", "N")
    drawing.option("out", "PICTURE")
    drawing.option("points", "N", default=None)
    options.trust(parser)
    options.overrides_of_a_run(parser)


def refuse(recordings: list[str], source: str | None, out: str | None, **given: Any) -> None:
    """Refuse two things to write, options that belong to neither, and counts below 1.

    Raises:
        ValueError: if two things are asked for, or an option does not belong to what is.
    """
    check_at_least(1, **{"--sentences": given["sentences"], "--max-length": given["max_length"]})
    what = _asked_for(recordings, source, out)
    for name, fitting in _FOR.items():
        if given[name] is not None and what not in fitting:
            option = "--begin" if name == "beginnings" else f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} is for {' or '.join(fitting)}, not for {what}")


def run(recordings: list[str], source: str | None, out: str | None, **given: Any) -> None:
    """Print texts, one a line, or draw a picture."""
    # each function has its own defaults
    given = {name: value for name, value in given.items() if value is not None}
    what = _asked_for(recordings, source, out)
    if what == "WAV":
        from rnnorm.experiments.trained.transcribe import transcribe

        print("\n".join(transcribe(recordings=recordings, **given)))
    elif what == "--from":
        from rnnorm.experiments.trained.translate import translate

        print("\n".join(translate(source=source or "", **_renamed(given, max_length="limit"))))
    elif what == "--out":
        from rnnorm.experiments.trained.draw import draw

        named = _renamed(given, beginnings="classes", sentences="count")
        print(f"picture: {draw(out=out or '', **named)}")
    else:
        from rnnorm.experiments.trained.text import write

        print("\n".join(write(**given)))


def _asked_for(recordings: list[str], source: str | None, out: str | None) -> str:
    """Return the option that says what to write, or "a text" if there is none.

    Raises:
        ValueError: if there are two such options.
    """
    given = {"WAV": recordings or None, "--from": source, "--out": out}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ValueError(f"write does one thing at a time, got {' and '.join(named)}")
    return named[0] if named else "a text"


# options that belong to some outputs alone, and those outputs
_FOR = {
    "beam": ("WAV", "--from"),
    "beginnings": ("a text", "--out"),
    "temperature": ("a text", "--out"),
    "sentences": ("a text", "--out"),
    "seed": ("a text", "--out"),
    "points": ("--out",),
    "data_dir": ("--out",),
    "max_length": ("a text", "--from", "--out"),
}


def _renamed(given: Mapping[str, Any], **names: str) -> dict[str, Any]:
    """Return the arguments with some of them renamed."""
    return {names.get(name, name): value for name, value in given.items()}
