"""Train recipes with the same data and budget, and compare them: what ``rnnorm compare`` does."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm import tqdm

from rnnorm.experiments.comparing.budget import Budget
from rnnorm.experiments.comparing.comparable import differences
from rnnorm.experiments.comparing.entry import (
    Entry,
    from_folder,
    from_recipe,
    named_apart,
    refuse_incomparable,
    training_of,
)
from rnnorm.experiments.comparing.picture import draw
from rnnorm.experiments.comparing.table import comparison_table
from rnnorm.experiments.measuring.curve import Curve, as_csv, in_shown_unit, read_curve, shown
from rnnorm.experiments.measuring.outcome import read_outcome
from rnnorm.experiments.training.checkpoints import write_whole
from rnnorm.experiments.training.finite import DivergedError
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.run_folder import read_run
from rnnorm.experiments.training.score import Score


def compare(
    runs: Sequence[str],
    out: str | Path = "runs/compare",
    *,
    epochs: int | None = None,
    minutes: float | None = None,
    seeds: int = 1,
    scale: str = "paper",
    data_dir: str | Path | None = None,
    reach: float | None = None,
    overrides: Sequence[str] = (),
    names: Sequence[str] | None = None,
    title: str = "",
    picture: str | Path | None = None,
) -> list[Curve]:
    """Compare recipes, or trainings that are there, and print a table, draw a picture.

    Each recipe is trained with seeds from 1 on, in a run folder of its own under ``out``. The same
    call again goes on where it was stopped.

    Args:
        runs: recipes and run folders. Folders that differ in the seed alone are one model.
        out: folder for the run folders, the picture and the curves.
        epochs: budget of each training, in epochs.
        minutes: budget of each training, in minutes of training steps; with ``epochs``, whichever
            is used up first. Without either, the recipes' own, and folders as far as all go.
        seeds: how many seeds of each recipe.
        scale: ``"paper"`` or ``"small"``.
        data_dir: where the data set's files are.
        reach: score whose steps and seconds are given, in the unit of the picture; by default the
            best of the first model's mean curve.
        overrides: options of LightningCLI for all recipes.
        names: what to call the recipes.
        title: above the picture.
        picture: another place for it.

    Returns:
        A curve for each model and seed, within the budget.

    Raises:
        ValueError: data, metric, seeds or budget differ; a number is out of range; or a folder
            under ``out`` holds another training.
        NotADirectoryError: ``out`` is a file.
        FileNotFoundError: the data lack files.
    """
    budget, out = Budget(epochs, minutes), Path(out)
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    if out.is_file():
        raise NotADirectoryError(f"{out} is no folder")
    options = [*overrides, *budget.overrides]
    entries: list[Entry] = []
    for run, name in zip(runs, names or runs, strict=True):
        if (Path(run) / "run.json").is_file():
            entries.append(from_folder(Path(run)))
        else:
            entries += from_recipe(run, name, seeds, scale, options, out)
    # a seed of every model before the next seed, so that what is there can be compared
    entries = sorted(named_apart(entries), key=lambda entry: entry.seed)
    refuse_incomparable(entries, budget)
    left = [entry for entry in entries if not _done(entry, budget)]
    out.mkdir(parents=True, exist_ok=True)
    score, curves = entries[0].score, []
    with tqdm(disable=not sys.stderr.isatty(), unit="step", leave=False) as bar:
        for entry in entries:
            diverged = entry in left and _train(
                entry, budget, options, data_dir, _Progress(bar, entry, len(left))
            )
            curve = read_curve(entry.folder, score, entry.model, entry.seed)
            curves.append(replace(curve, diverged=diverged))
            tqdm.write(_line(curve, score))
            sys.stdout.flush()
    whole, curves = curves, budget.cut(curves)
    for before, curve in zip(whole, curves, strict=True):
        if len(curve.steps) < len(before.steps):
            last = curve.steps[-1] if curve.steps else 0
            print(f"{curve.model}, seed {curve.seed}: compared over its first {last} steps")
    path = Path(picture) if picture is not None else out / "comparison.png"
    draw(curves, path, label=f"validation {shown(score)}", title=title, goal=reach)
    write_whole(out / "comparison.csv", as_csv(curves, score).encode())
    print(f"\n{comparison_table(curves, score, reach)}")
    print(f"\npicture: {path}\ncurves: {out / 'comparison.csv'}", flush=True)
    return curves


def _line(curve: Curve, score: Score) -> str:
    said = f"{curve.model:<7}  seed {curve.seed}"
    if not curve.values:
        return f"{said}  no validation yet"
    return (
        f"{said}  {curve.steps[-1]} steps in {curve.seconds[-1]:5.1f} s  "
        f"validation {shown(score)}: {curve.values[-1]:.4g}"
    )


def _done(entry: Entry, budget: Budget) -> bool:
    """Whether nothing is left of a training to do.

    Raises:
        ValueError: the run folder holds another training.
    """
    if entry.recipe is None:
        return True
    if not (entry.folder / "config.yaml").is_file():
        return False
    there = yaml.safe_load(read_run(entry.folder, entry.recipe, entry.scale)[0])
    if found := list(differences(training_of(there), training_of(entry.config))):
        raise ValueError(
            f"{entry.folder} holds another training: {'; '.join(found)}. Name another --out"
        )
    if budget == Budget() and (own := entry.own_budget["max_epochs"] or -1) > 0:
        budget = Budget(epochs=own)
    whole = (entry.folder / "checkpoints" / "last.ckpt").is_file()
    return whole and budget.spent(read_outcome(entry.folder))


def _train(
    entry: Entry,
    budget: Budget,
    options: Sequence[str],
    data_dir: str | Path | None,
    progress: Callback,
) -> bool:
    """Train an entry, or go on with it. Returns whether it diverged."""
    there = (entry.folder / "config.yaml").is_file()
    own = [f"--trainer.{k}={'null' if v is None else v}" for k, v in entry.own_budget.items()]
    try:
        fit(
            entry.recipe,
            data_dir=data_dir,
            run_dir=None if there else entry.folder,
            resume=entry.folder if there else None,
            scale=entry.scale,
            overrides=[*options, *own, f"--seed_everything={entry.seed}"],
            callbacks=[*budget.callbacks(), progress],
            quiet=True,
        )
    except DivergedError as error:
        tqdm.write(f"{entry.model}, seed {entry.seed}: {error}")
        return True
    return False


class _Progress(Callback):
    """Moves the bar after each step; without a terminal, prints a line a minute."""

    def __init__(self, bar: Any, entry: Entry, trainings: int) -> None:
        self._bar, self._entry, self._trainings = bar, entry, trainings
        self._printed = time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say how much there is to do."""
        steps = trainer.estimated_stepping_batches
        if not self._bar.total and math.isfinite(steps):
            self._bar.reset(total=int(steps) * self._trainings)
        self._bar.set_description(f"{self._entry.model}, seed {self._entry.seed}")

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Count."""
        self._bar.update()
        if sys.stderr.isatty() or time.monotonic() - self._printed < 60:
            return
        self._printed = time.monotonic()
        where = f"epoch {trainer.current_epoch + 1}, step {trainer.global_step}"
        print(f"{self._entry.model}, seed {self._entry.seed}: {where}", flush=True)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the score."""
        score = self._entry.score
        value = in_shown_unit(score, float(trainer.callback_metrics[f"val/{score.name}"]))
        self._bar.set_postfix_str(f"validation {shown(score)} {value:.4g}")
