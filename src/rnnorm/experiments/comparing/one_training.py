"""One training of a comparison, within its budget."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm import tqdm

from rnnorm.experiments.comparing.budget import Budget
from rnnorm.experiments.comparing.entry import Entry, training_of
from rnnorm.experiments.measuring.outcome import read_outcome
from rnnorm.experiments.training.checkpoint_names import LAST
from rnnorm.experiments.training.differences import differences
from rnnorm.experiments.training.finite import DivergedError
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.progress import StepsBar
from rnnorm.experiments.training.run_folder import read_run
from rnnorm.experiments.training.words import is_run


def is_done(entry: Entry, budget: Budget) -> bool:
    """Whether nothing is left of a training to do.

    Raises:
        ValueError: the run folder holds another training.
    """
    if entry.recipe is None:
        return True
    if not is_run(entry.folder):
        return False
    there, _ = read_run(entry.folder, entry.recipe, entry.scale)
    if found := list(differences(training_of(there), training_of(entry.config))):
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
    """Train an entry, or go on with it, until it diverges."""
    there = is_run(entry.folder)
    own = [f"--trainer.{k}={'null' if v is None else v}" for k, v in entry.own_budget.items()]
    name = f"{entry.model}, seed {entry.seed}"
    try:
        fit(
            entry.recipe,
            data_dir=data_dir,
            run_dir=None if there else entry.folder,
            resume=entry.folder if there else None,
            scale=entry.scale,
            overrides=[*entry.options, *own, f"--seed_everything={entry.seed}"],
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
    """Says where a training goes on; where there is no terminal, a line a minute where it is."""

    def __init__(self, name: str) -> None:
        self._name, self._printed = name, time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say where it goes on."""
        if trainer.global_step:
            tqdm.write(f"{self._name}: resuming at step {trainer.global_step}")

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Say where it stands."""
        if sys.stderr.isatty() or time.monotonic() - self._printed < 60:
            return
        self._printed = time.monotonic()
        where = f"epoch {trainer.current_epoch + 1}, step {trainer.global_step}"
        print(f"{self._name}: {where}", flush=True)
