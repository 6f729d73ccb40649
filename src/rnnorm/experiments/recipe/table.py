"""The table of recipes: each one's paper number, data and training time."""

from __future__ import annotations

import csv
from collections.abc import Sequence

from rnnorm.experiments.console import duration, text_table
from rnnorm.experiments.recipe.recipe import FOLDER, Recipe, read_recipe, recipe_names

_DATA = {
    "babi": "bAbI",
    "chinese": "CMRC, CFT",
    "cnn": "CNN",
    "digits": "comes along",
    "SpokenData digits": "FSDD",
    "fsdd": "FSDD",
    "kaldi": "Kaldi",
    "mnist": "MNIST",
    "ptb-char": "PTB chars",
    "ptb-word": "PTB words",
    "text8": "text8",
}
_NOTE = """\
The time is that of all training steps, measured by a step on two cores of an AMD EPYC (AVX-512);
– was not measured. With --scale small a recipe takes minutes; those of demo/ have one scale.
scikit-learn brings the digits, and MNIST is downloaded. All other data need --data-dir, the folder
of your files."""


def recipe_table(words: Sequence[str] = ()) -> str:
    """Return the table of recipes, a line each.

    Args:
        words: list only recipes whose line has all of these words, ignoring case.

    Raises:
        ValueError: if no recipe's line has all of ``words``.
    """
    with (FOLDER / "times.csv").open(newline="", encoding="utf-8") as file:
        times = {
            row["recipe"]: int(row["steps_per_epoch"]) * float(row["seconds_per_step"])
            for row in csv.DictReader(file)
        }
    rows = [_row(read_recipe(name), times.get(name)) for name in recipe_names()]
    found = [r for r in rows if all(word.lower() in " ".join(r).lower() for word in words)]
    if not found:
        raise ValueError(f"no recipe has {' '.join(words)!r} in its line: rnnorm recipes lists all")
    rows = [("recipe", "the paper's number", "data", "time"), *found]
    return "\n".join([*text_table(rows, " "), "", _NOTE])


def _row(recipe: Recipe, seconds_per_epoch: float | None) -> tuple[str, str, str, str]:
    """Return a recipe's cells: name, paper's number, data and time."""
    about, data = recipe.about, recipe.config["data"]["init_args"]
    # a task that reads any data set of one layout has a name instead of a data set
    dataset = data["dataset"] if "dataset" in data else data["name"]
    number = about.get("number")
    goal = "–" if number is None else f"{about['metric'].replace(' per ', '/')} {number}"
    if seconds_per_epoch is None:
        time = "–"
    else:
        time = duration(seconds_per_epoch * recipe.config["trainer"]["max_epochs"])
    kind = recipe.config["data"]["class_path"].rpartition(".")[2]
    source = _DATA.get(f"{kind} {dataset}", _DATA.get(dataset, dataset))
    return recipe.name, goal, source, time
