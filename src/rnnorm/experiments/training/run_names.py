"""Names on the command line: recipes, run folders, folders of them, and their checkpoints."""

from __future__ import annotations

import difflib
import shlex
from pathlib import Path

from rnnorm.experiments.console import nearest
from rnnorm.experiments.files import file_exists
from rnnorm.experiments.recipe.recipe import ENDINGS, recipe_file, recipe_names

#: checkpoints of a run folder
LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"


def is_recipe(word: str) -> bool:
    """Return whether a word names a recipe."""
    return word in recipe_names() or (word.endswith(ENDINGS) and file_exists(Path(word)))


def shell_word(path: str | Path) -> str:
    """Return a path quoted for a shell, and not mistakable for an option."""
    word = str(path)
    return shlex.quote(f"./{word}" if word.startswith("-") else word)


def is_run(folder: str | Path) -> bool:
    """Return whether a folder is a run folder."""
    return file_exists(Path(folder) / "run.json")


def refuse_unknown_recipe(word: str) -> None:
    """Refuse a word that does not name a recipe.

    Raises:
        ValueError: if the word names a run folder, or nothing.
    """
    if is_run(word):
        command = f"rnnorm fit --resume {shell_word(word)}"
        raise ValueError(f"{word} is a run: resume it by {command}")
    recipe_file(word)


def refuse_unknown(word: str) -> None:
    """Refuse a word that names neither a recipe nor a folder with runs.

    Raises:
        ValueError: if the word names neither.
    """
    if is_recipe(word) or _runs(word):
        return
    if Path(word).exists():
        raise ValueError(_no_run(word))
    try:
        recipe_file(word)
    except ValueError as error:
        raise ValueError(f"{error}; {_no_run(word)}") from None


def runs_in(word: str | Path) -> list[Path]:
    """Return the run folder that a word names, or the run folders in the named folder.

    Raises:
        ValueError: if the word names no run folder, and no folder with runs.
    """
    if not (runs := _runs(word)):
        raise ValueError(_no_run(str(word)))
    return runs


def refuse_several(folder: str | Path) -> None:
    """Refuse a folder of runs where one run is needed.

    Raises:
        ValueError: if the folder is not a run folder, and holds some.
    """
    if not is_run(folder) and (runs := _runs(folder)):
        raise ValueError(f"{folder} holds several runs: name one, such as {runs[0]}")


def checkpoint_of(run: str | Path, checkpoint: str | Path | None = None) -> Path:
    """Return the given checkpoint, or the best of a run folder, or the last without a best.

    Args:
        run: a run folder, or the name of a recipe.
        checkpoint: the checkpoint to return; must be given with a recipe.

    Raises:
        ValueError: if ``checkpoint`` is None and ``run`` is not a run folder.
        FileNotFoundError: if the run has no checkpoint yet.
    """
    if checkpoint is not None:
        return Path(checkpoint)
    if not is_run(run):
        refuse_several(run)
        refuse_unknown(str(run))
        raise ValueError(f"{run} is a recipe: name its run folder instead, or add --ckpt FILE")
    if (kept := _kept(run)) is None:
        raise FileNotFoundError(f"the run in {run} has no checkpoint yet")
    return kept


def has_checkpoint(run: str | Path) -> bool:
    """Return whether a run folder has a checkpoint yet."""
    return _kept(run) is not None


def _kept(run: str | Path) -> Path | None:
    paths = (Path(run) / "checkpoints" / name for name in (BEST, LAST))
    return next((path for path in paths if file_exists(path)), None)


def _runs(word: str | Path) -> list[Path]:
    folder = Path(word)
    if is_run(folder):
        return [folder]
    runs = sorted(path.parent for path in folder.glob("*/run.json"))
    # a partial folder is left by a kill while a run was made
    return [run for run in runs if run.suffix != ".partial"]


def _no_run(word: str) -> str:
    """Return a message that says what a word without a run names instead."""
    path = Path(word)
    if word and path.is_dir():
        return f"{word} is a folder without runs: neither it nor a folder in it has a run.json"
    if path.is_file():
        return f"{word} is a file, and a run is a folder"
    if is_recipe(word):
        return f"{word} is a recipe, and a run folder is needed"
    # the user may have misspelt a run beside it, or one in the default folder
    there = [str(run) for run in dict.fromkeys([*_runs(path.parent), *_runs("runs")])]
    near = [run for run in there if path.name and path.name in run]
    near += [n for n in difflib.get_close_matches(word, there, cutoff=0.5) if n not in near]
    return f"there is no run folder {word!r}{nearest(near[:3])}"
