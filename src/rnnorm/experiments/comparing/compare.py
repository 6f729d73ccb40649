"""``rnnorm compare``: train recipes with the same data and budget, and compare them."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm import tqdm

from rnnorm.experiments.comparing.budget import Budget
from rnnorm.experiments.comparing.entry import (
    Entry,
    from_folder,
    from_recipe,
    named_apart,
    refuse_incomparable,
    training_of,
    variations,
)
from rnnorm.experiments.comparing.picture import draw, refuse_name
from rnnorm.experiments.comparing.table import comparison_table
from rnnorm.experiments.console import check_at_least, counted
from rnnorm.experiments.recipe.label import differences
from rnnorm.experiments.recipe.options import option_name, refuse_twice, training_options
from rnnorm.experiments.trained.curve import Curve, as_csv, read_curve
from rnnorm.experiments.trained.outcome import read_outcome
from rnnorm.experiments.training.build import place_options
from rnnorm.experiments.training.finite import DivergedError
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.folder import read_run, rebuild, refuse_existing
from rnnorm.experiments.training.progress import StepsBar, steps_bar
from rnnorm.experiments.training.run_names import LAST, has_checkpoint, is_recipe, is_run, runs_in
from rnnorm.experiments.training.score import Score
from rnnorm.experiments.writing import refuse_file, write_whole


def compare(
    runs: Sequence[str],
    out: str | Path = "runs/compare",
    *,
    vary: str | None = None,
    epochs: int | None = None,
    minutes: float | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    seeds: int = 1,
    scale: str | None = None,
    data_dir: str | Path | None = None,
    reach: float | None = None,
    overrides: Sequence[str] = (),
    names: Sequence[str] | None = None,
    title: str = "",
    picture: str | Path | None = None,
) -> list[Curve]:
    """Compare recipes or existing trainings: print a table and draw a picture.

    Each recipe is trained with seeds from 1 on, in a run folder of its own under ``out``. The same
    call again resumes a comparison that was stopped.

    Args:
        runs: recipes, run folders, and folders that ``compare`` wrote. Runs that differ in the seed
            alone are one model.
        out: folder for the run folders, the picture and the curves.
        vary: an option and its values, such as ``"model.norm=batch,layer,none"``: each recipe is
            trained with each value.
        epochs: budget of each training, in passes over the training data; the recipe's by default.
        minutes: budget of each training, in minutes of training steps. With ``epochs``, whichever
            is used up first counts. Without either, recipes use their own budget, and folders are
            compared up to the end of the shortest.
        lr: learning rate of all recipes; their own by default.
        batch_size: rows of a training minibatch of all recipes; their own by default.
        seeds: number of seeds of each recipe, from 1 on.
        scale: ``"small"`` ends within minutes on two cores, but its numbers are not the paper's;
            ``"paper"`` by default.
        data_dir: folder with the data set's files; MNIST is downloaded without it.
        reach: score to which the steps and seconds are given, in the unit of the picture; by
            default the best of the first model's mean curve.
        overrides: options of LightningCLI for all recipes.
        names: names of the recipes in the table and the picture.
        title: title of the picture.
        picture: path of the picture, ``comparison.png`` under ``out`` by default.

    Returns:
        A curve for each model and seed, within the budget.

    Raises:
        ValueError: if data, metric, seeds or budget differ; a number is out of range; an option is
            the seed, a second budget or given twice; a recipe has ``trainer.max_time``; a folder
            under ``out`` holds another training; or ``picture`` has no format.
        NotADirectoryError: if ``out`` is a file.
        IsADirectoryError: if ``picture`` is a folder.
        FileNotFoundError: if a file of the data is missing.
    """
    budget, out = Budget(epochs, minutes), Path(out)
    check_at_least(1, seeds=seeds)
    # all trainings are listed before the first one, so their number must be bounded
    if seeds > 10_000:
        raise ValueError(f"seeds must be at most 10,000, got {seeds:,}")
    refuse_file(out)
    if reach is not None and not isfinite(reach):
        raise ValueError(f"reach must be a finite number, got {reach}")
    path = Path(picture) if picture is not None else out / "comparison.png"
    refuse_name(path)
    varied = variations(vary)
    for option in (*overrides, *itertools.chain(*varied)):
        if option_name(option) == "seed_everything":
            raise ValueError(f"{option} has no effect: --seeds N trains with the seeds from 1 to N")
        if option_name(option) in map(option_name, budget.overrides):
            raise ValueError(f"{option} has no effect beside a budget in epochs or minutes")
    options = training_options(lr=lr, batch_size=batch_size, overrides=overrides)
    # all variations are of one option
    refuse_twice(options, varied[0])
    options += budget.overrides
    entries: list[Entry] = []
    for run, name in zip(runs, names or runs, strict=True):
        if is_recipe(run):
            for change in varied:
                entries += from_recipe(
                    run, name, seeds, scale or "paper", [*options, *change], out, change, data_dir
                )
        elif vary is not None:
            raise ValueError(f"--vary is for recipes, and {run} is not a recipe")
        else:
            entries += map(from_folder, runs_in(run))
    # all models get one seed before the next, so that an unfinished comparison is useful
    entries = sorted(named_apart(entries), key=lambda entry: entry.seed)
    refuse_incomparable(entries, budget)
    _refuse_max_time(entries)
    _refuse_one_folder(entries)
    left = [entry for entry in entries if not is_done(entry, budget)]
    out.mkdir(parents=True, exist_ok=True)
    score, curves = entries[0].score, []
    with steps_bar() as bar:
        for entry in entries:
            if entry in left:
                train(entry, budget, data_dir, bar, len(left))
            curve = read_curve(entry.folder, score, entry.model, entry.seed)
            curves.append(curve)
            tqdm.write(_line(curve, score))
            sys.stdout.flush()
    ended: list[bool] = []
    if budget.minutes is not None:
        folders = [entry.folder for entry in entries]
        ended = [has_checkpoint(run) and budget.ended(read_outcome(run)) for run in folders]
    whole, curves = curves, budget.cut(curves, ended)
    for before, curve in zip(whole, curves, strict=True):
        if len(curve.steps) < len(before.steps):
            last = counted(curve.steps[-1] if curve.steps else 0, "step")
            print(f"{curve.model}, seed {curve.seed}: compared over its first {last}")
    draw(curves, path, label=f"validation {score.label}", title=title, goal=reach)
    write_whole(out / "comparison.csv", as_csv(curves, score).encode())
    print(f"\n{comparison_table(curves, score, reach)}")
    print(f"\npicture: {path}\ncurves: {out / 'comparison.csv'}", flush=True)
    return curves


def _line(curve: Curve, score: Score) -> str:
    name = f"{curve.model:<7}  seed {curve.seed}"
    if not curve.values:
        return f"{name}  no validation yet"
    return (
        f"{name}  {counted(curve.steps[-1], 'step')} in {curve.seconds[-1]:5.1f} s  "
        f"validation {score.label}: {curve.values[-1]:.4g}"
    )


def _refuse_one_folder(entries: Sequence[Entry]) -> None:
    """Refuse trainings that would share a run folder, before the first one starts.

    Raises:
        ValueError: if two trainings have the same folder, since their recipes' file names agree.
    """
    owners: dict[Path, Entry] = {}
    for entry in entries:
        other = owners.setdefault(entry.folder, entry)
        if other is not entry:
            raise ValueError(
                f"{other.model} and {entry.model} would both be trained in {entry.folder}: give "
                "one of the recipes another file name"
            )


def _refuse_max_time(entries: Sequence[Entry]) -> None:
    """Refuse trainings that a limit of their own would end before the common budget.

    Raises:
        ValueError: if a recipe that is to be trained has ``trainer.max_time``.
    """
    for entry in entries:
        if entry.recipe is not None and (given := entry.config["trainer"]["max_time"]) is not None:
            raise ValueError(
                f"trainer.max_time must be null in a comparison, got {given!r} for {entry.model}: "
                "it would end a training before the budget of all; --minutes M gives each training "
                "M minutes"
            )


def is_done(entry: Entry, budget: Budget) -> bool:
    """Tell whether a training is finished.

    Raises:
        ValueError: if the run folder holds another training.
        FileExistsError: if the folder exists and holds no run.
    """
    if entry.recipe is None:
        return True
    if not is_run(entry.folder):
        refuse_existing(entry.folder, "--out")
        return False
    existing, _ = read_run(entry.folder, entry.recipe, entry.scale)
    if training_of(existing) != training_of(entry.config):
        # building, which is slow, adds the defaults of arguments that later versions brought
        existing = rebuild(entry.folder)[0].as_dict()
    if found := list(differences(training_of(existing), training_of(entry.config))):
        raise ValueError(
            f"{entry.folder} holds another training: {'; '.join(found)}. Name another --out"
        )
    if budget == Budget() and (own := entry.own_budget["max_epochs"] or -1) > 0:
        budget = Budget(epochs=own)
    whole = (entry.folder / "checkpoints" / LAST).is_file()
    return whole and budget.spent(read_outcome(entry.folder))


def train(
    entry: Entry,
    budget: Budget,
    data_dir: str | Path | None,
    bar: Any,
    trainings: int,
) -> None:
    """Train an entry, or resume its training; a divergence ends the training with a message."""
    started = is_run(entry.folder)
    own = [f"--trainer.{k}={'null' if v is None else v}" for k, v in entry.own_budget.items()]
    # the run folder names the places of the machine that began the training
    places = place_options(entry.config) if started else []
    name = f"{entry.model}, seed {entry.seed}"
    try:
        fit(
            entry.recipe,
            data_dir=data_dir,
            run_dir=None if started else entry.folder,
            resume=entry.folder if started else None,
            scale=entry.scale,
            overrides=[*entry.options, *places, *own, f"--seed_everything={entry.seed}"],
            callbacks=[
                *budget.callbacks(),
                StepsBar(entry.score, bar, name, trainings),
                _Lines(name),
            ],
            quiet=True,
            one_process=True,
        )
    except DivergedError as error:
        tqdm.write(f"{name}: {error}")


class _Lines(Callback):
    """Callback that prints where a training resumes, and without a terminal its progress."""

    def __init__(self, name: str) -> None:
        self._name, self._printed = name, time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the step at which a training resumes."""
        if trainer.global_step:
            tqdm.write(f"{self._name}: resuming at step {trainer.global_step}")

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Print the progress once a minute, unless a terminal shows it."""
        if sys.stderr.isatty() or time.monotonic() - self._printed < 60:
            return
        self._printed = time.monotonic()
        where = f"epoch {trainer.current_epoch + 1}, step {trainer.global_step}"
        print(f"{self._name}: {where}", flush=True)
