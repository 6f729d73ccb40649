"""What a word on the command line names: a recipe, a run folder, or a folder of run folders."""

from __future__ import annotations

import difflib
import shlex
from pathlib import Path

from rnnorm.experiments.files import file_exists
from rnnorm.experiments.recipe.recipe import ENDINGS, recipe_file, recipe_names


def is_recipe(word: str) -> bool:
    """Whether there is a recipe of that name."""
    return word in recipe_names() or (word.endswith(ENDINGS) and file_exists(Path(word)))


def shell_word(path: str | Path) -> str:
    """A path as a shell and a command of ours read it: quoted, and no option."""
    word = str(path)
    return shlex.quote(f"./{word}" if word.startswith("-") else word)


def is_run(folder: str | Path) -> bool:
    """Whether a folder is that of a run."""
    return file_exists(Path(folder) / "run.json")


def refuse_unknown_recipe(word: str) -> None:
    """Refuse what is no recipe.

    Raises:
        ValueError: there is none of that name, or it names a run.
    """
    if is_run(word):
        command = f"rnnorm fit --resume {shell_word(word)}"
        raise ValueError(f"{word} is a run: go on with it by {command}")
    recipe_file(word)


def refuse_unknown(word: str) -> None:
    """Refuse what is neither a recipe nor a folder with runs.

    Raises:
        ValueError: it is neither.
    """
    if is_recipe(word) or _runs(word):
        return
    if Path(word).exists():
        raise ValueError(_no_run(word))
    recipe_file(word)


def runs_in(word: str | Path) -> list[Path]:
    """The run folder of that name, or the run folders in a folder, as ``compare`` writes one.

    Raises:
        ValueError: there is no run.
    """
    if not (runs := _runs(word)):
        raise ValueError(_no_run(str(word)))
    return runs


def checkpoint_of(run: str | Path, checkpoint: str | Path | None = None) -> Path:
    """The checkpoint to use of a run folder: the best one, or the last where there is no best one.

    Args:
        run: a run folder, or the name of a recipe.
        checkpoint: another one; must be given with a recipe.

    Raises:
        ValueError: there is neither a run nor a checkpoint.
        FileNotFoundError: the run has no checkpoint yet.
    """
    if checkpoint is not None:
        return Path(checkpoint)
    if not is_run(run):
        if runs := _runs(run):
            raise ValueError(f"{run} holds several runs: name one, such as {runs[0]}")
        refuse_unknown(str(run))
        raise ValueError(f"{run} is a recipe: name its run folder instead, or add --ckpt FILE")
    if (kept := _kept(run)) is None:
        raise FileNotFoundError(f"the run in {run} has no checkpoint yet")
    return kept


def has_checkpoint(run: str | Path) -> bool:
    """Whether a run folder has one yet."""
    return _kept(run) is not None


def _kept(run: str | Path) -> Path | None:
    paths = (Path(run) / "checkpoints" / name for name in (BEST, LAST))
    return next((path for path in paths if file_exists(path)), None)


def _runs(word: str | Path) -> list[Path]:
    folder = Path(word)
    if is_run(folder):
        return [folder]
    runs = sorted(path.parent for path in folder.glob("*/run.json"))
    # what was killed while it was made is none yet
    return [run for run in runs if run.suffix != ".partial"]


def _no_run(word: str) -> str:
    """What a word is that names no run."""
    path = Path(word)
    if word and path.is_dir():
        return f"{word} is a folder without runs: neither it nor a folder in it has a run.json"
    if path.is_file():
        return f"{word} is a file, and a run is a folder"
    if is_recipe(word):
        return f"{word} is a recipe, and a run folder is needed"
    # beside the folder that was named, and where runs are by default
    there = [str(run) for run in dict.fromkeys([*_runs(path.parent), *_runs("runs")])]
    near = [run for run in there if path.name and path.name in run]
    near += [n for n in difflib.get_close_matches(word, there, cutoff=0.5) if n not in near]
    return f"there is no run folder {word!r}" + (
        f": the nearest are {', '.join(near[:3])}" if near else ""
    )


LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
