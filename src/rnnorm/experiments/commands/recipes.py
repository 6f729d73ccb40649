"""The command ``rnnorm recipes``."""

from __future__ import annotations

from argparse import ArgumentParser

HELP = "list the recipes: the paper's number, the data and the time that each needs"
USAGE = ("[WORD ...]",)


def add_options(parser: ArgumentParser) -> None:
    """Add the words that choose the recipes."""
    parser.add_argument(
        "words",
        metavar="WORD",
        nargs="*",
        help="list only the recipes whose line has all of these words, such as ptb",
    )


def run(words: list[str]) -> None:
    """Print the table of the recipes whose line has all of the words."""
    from rnnorm.experiments.recipe.table import recipe_table

    print(recipe_table(words))
