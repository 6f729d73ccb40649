"""Create, read and lock the run folder of a training."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import rnnorm
from rnnorm.experiments.files import file_exists, unpack
from rnnorm.experiments.recipe.recipe import (
    ENDINGS,
    OverrideError,
    Recipe,
    check_keys,
    read_config,
)
from rnnorm.experiments.training.build import Experiment
from rnnorm.experiments.training.run_names import is_run, shell_word
from rnnorm.experiments.writing import partial_of, refuse_file, stale_partials, write_whole

# most bytes of a run.json
_LIMIT = 1 << 20


def default_folder(recipe: Recipe) -> Path:
    """Return the run folder of a recipe for which no folder is named."""
    name = Path(recipe.name).stem if recipe.name.endswith(ENDINGS) else recipe.name
    small = "-small" if recipe.scale == "small" else ""
    return Path("runs") / (name.replace("/", "-") + small)


def refuse_existing(folder: Path, option: str = "--run-dir") -> None:
    """Refuse a run folder that exists.

    Args:
        folder: where a new run should be.
        option: the option that named the folder, or the folder above it.

    Raises:
        FileExistsError: if the path is a folder or a file.
        NotADirectoryError: if a folder above it is a file.
    """
    refuse_file(folder.parent)
    if folder.is_file():
        raise FileExistsError(f"{folder} is a file: name a run folder with {option}")
    if folder.exists() and not is_run(folder):
        raise FileExistsError(
            f"the run folder {folder} exists and holds no run: remove it, or name another {option}"
        )
    if folder.exists():
        raise FileExistsError(
            f"the run folder {folder} exists: resume it by --resume "
            f"{shell_word(folder)}, or name another with {option}"
        )


def describe(recipe: Recipe, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return what ``run.json`` says about the recipe and its overrides."""
    return {
        "recipe": recipe.name,
        "scale": recipe.scale,
        "overrides": list(overrides),
        "about": recipe.about,
    }


def start_run(folder: Path, about: dict[str, Any], config: str) -> None:
    """Create the run folder with its ``run.json`` and ``config.yaml``, or not at all.

    Raises:
        FileExistsError: if the folder exists.
        OSError: if the folder cannot be made, or the disk is full.
    """
    refuse_existing(folder)
    for stale in stale_partials(folder):
        shutil.rmtree(stale, ignore_errors=True)
    versions = {"rnnorm": rnnorm.__version__, "torch": torch.__version__}
    # JSON has no dates, and YAML has
    text = json.dumps({**about, **versions}, indent=2, default=str)
    # a kill at any moment leaves no folder under the final name
    partial = partial_of(folder)
    try:
        partial.mkdir(parents=True)
        write_whole(partial / "run.json", f"{text}\n".encode())
        write_whole(partial / "config.yaml", config.encode())
        partial.rename(folder)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        # the rename fails if another process made the folder first
        refuse_existing(folder)
        if isinstance(error, OSError):
            # the error names the partial folder
            raise OSError(error.errno, error.strerror, str(folder)) from error
        raise


def read_run(
    folder: Path, recipe: str | None, scale: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configuration and the ``run.json`` of a training.

    Args:
        folder: the training's run folder.
        recipe: the recipe that the training should be of, or None for any.
        scale: the scale that the training should have, or None for any.

    Raises:
        FileNotFoundError: if the folder holds no training.
        ValueError: if the training is of another recipe, scale or version, or one of the files is
            broken.
    """
    config = folder / "config.yaml"
    if not file_exists(config) or not file_exists(folder / "run.json"):
        raise FileNotFoundError(f"there is no run in {folder}: it lacks config.yaml or run.json")
    about = read_about(folder)
    _check_version(folder, about)
    if recipe is not None and recipe != about["recipe"]:
        raise ValueError(f"the run in {folder} is of recipe {about['recipe']}, not of {recipe}")
    if scale is not None and scale != about["scale"]:
        raise ValueError(f"the run in {folder} has the scale {about['scale']}, not {scale}")
    return read_config(config), about


def read_about(folder: Path) -> dict[str, Any]:
    """Return the checked ``run.json`` of a run folder.

    Raises:
        FileNotFoundError: if the folder has no ``run.json``.
        ValueError: if ``run.json`` is broken.
    """
    path = folder / "run.json"
    if not file_exists(path):
        lacks = "it lacks run.json" if folder.is_dir() else "it is not a folder"
        raise FileNotFoundError(f"there is no run in {folder}: {lacks}")
    data = unpack(path, "", _LIMIT)
    try:
        about = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(about, dict):
        raise ValueError(
            f"{path} is not a run's file: it must be an object, got {json.dumps(about):.20}"
        )
    for name, kind in (("recipe", str), ("scale", str), ("about", dict)):
        if not isinstance(about.get(name), kind):
            raise ValueError(
                f"{path} is not a run's file: it needs the key {name!r}, with a value of type "
                f"{kind.__name__}"
            )
    check_keys("about", about["about"], path)
    overrides = about.get("overrides", [])
    if not isinstance(overrides, list) or not all(isinstance(word, str) for word in overrides):
        got = json.dumps(overrides)
        raise ValueError(
            f"{path} is not a run's file: overrides must be a list of words, got {got:.40}"
        )
    if not isinstance(start := about.get("start", ""), str):
        raise ValueError(
            f"{path} is not a run's file: start must be a path, got {json.dumps(start):.40}"
        )
    samples = about.get("samples", 0)
    if not isinstance(samples, int) or samples < 0:
        raise ValueError(
            f"{path} is not a run's file: samples must be a number of at least 0, got "
            f"{json.dumps(samples):.40}"
        )
    return about


def rebuild(
    folder: Path,
    recipe: str | None = None,
    scale: str | None = None,
    overrides: Sequence[str] = (),
) -> tuple[Experiment, dict[str, Any]]:
    """Build the model and data of a training, and return them with its ``run.json``.

    Args:
        folder: the training's run folder.
        recipe: the recipe that the training should be of, or None for any.
        scale: the scale that the training should have, or None for any.
        overrides: options of LightningCLI.

    Raises:
        OverrideError: if the recipe does not know an override.
        ValueError: as :func:`read_run`, or if this version does not know the configuration.
    """
    config, about = read_run(folder, recipe, scale)
    try:
        return Experiment(config, overrides), about
    except OverrideError:
        try:
            Experiment(config)
        except OverrideError as error:
            raise ValueError(
                f"{folder / 'config.yaml'} was written by rnnorm {about['rnnorm']}, and this is "
                f"rnnorm {rnnorm.__version__}, which cannot read it: it is of an older layout, or "
                f"was edited. {error}"
            ) from None
        raise


def _check_version(folder: Path, about: dict[str, Any]) -> None:
    """Raise a ValueError if another major or minor version of rnnorm wrote a run."""
    wrote, here = about.get("rnnorm"), rnnorm.__version__
    if not isinstance(wrote, str) or wrote.split(".")[:2] != here.split(".")[:2]:
        what = f"is of rnnorm {wrote}" if "rnnorm" in about else "does not say of which version"
        raise ValueError(
            f"the run in {folder} {what}, and this is rnnorm {here}: resume it with the "
            "version that started it. Nothing in it was changed"
        )


_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Lock a run folder against other processes until this process leaves it or dies.

    The operating system's lock on ``run.json`` ends with the process, even after a kill. Partial
    files of killed processes are removed. A line on stderr says if the file system has no locks.

    Raises:
        BlockingIOError: if another process trains in the folder.
    """
    with (folder / "run.json").open("r+b") as file:
        try:
            _lock(file.fileno())
        except OSError as error:
            if error.errno in _TAKEN:
                message = f"another process trains in {folder}: wait for it, or name another folder"
                raise BlockingIOError(errno.EAGAIN, message) from None
            print(
                f"{folder} cannot be locked ({error.strerror}): see to it that nothing else trains "
                "there",
                file=sys.stderr,
                flush=True,
            )
        for written in ("checkpoints/*", "config.yaml.*", "metrics.csv.*", "samples.txt.*"):
            for partial in folder.glob(f"{written}.partial"):
                partial.unlink()
        yield


def _lock(descriptor: int) -> None:
    """Lock an open file; closing the file releases the lock."""
    if sys.platform == "win32":
        import msvcrt

        # Windows keeps others from reading locked bytes, so lock one behind the end
        os.lseek(descriptor, 1 << 30, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
