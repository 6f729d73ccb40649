"""Describe a training before it starts and after it ends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from rnnorm.experiments.console import counted
from rnnorm.experiments.private_apis import callbacks_of
from rnnorm.experiments.recipe.label import changes_of, run_label
from rnnorm.experiments.training.build import Experiment
from rnnorm.experiments.training.clock import StopAfter
from rnnorm.experiments.training.run_names import BEST, LAST, shell_word
from rnnorm.experiments.training.score import score_of
from rnnorm.lightning import ExactStatistics
from rnnorm.norm.frozen_population import unfrozen_populations


@dataclass(frozen=True)
class Run:
    """A finished training.

    Attributes:
        folder: holds ``run.json``, ``config.yaml``, ``metrics.csv``, ``checkpoints/`` and
            ``tensorboard/``.
        experiment: the model with its last weights, its data and configuration.
        trainer: the trainer.
        best: best value of the task's score, or None without a validation.
        best_epoch: epoch of the best value, counted from 1.
        seconds: time spent in training steps.
    """

    folder: Path
    experiment: Experiment
    trainer: Trainer
    best: float | None
    best_epoch: int
    seconds: float

    @property
    def last_checkpoint(self) -> Path:
        """Return the path of the checkpoint from which training resumes."""
        return self.folder / "checkpoints" / LAST

    @property
    def best_checkpoint(self) -> Path:
        """Return the path of the checkpoint with the best score."""
        return self.folder / "checkpoints" / BEST

    def summary(self) -> str:
        """Return lines with the training's results and the next command."""
        steps = counted(self.trainer.global_step, "step")
        lines = [f"{steps}, {self.seconds:.0f} s in training steps"]
        if self.best is not None:
            best = score_of(self.experiment.model).format("validation", self.best)
            lines.append(f"best {best}, in epoch {self.best_epoch}")
        limits = callbacks_of(self.trainer, StopAfter)
        used_up = any(self.trainer.global_step >= limit.steps for limit in limits)
        if self.trainer.should_stop and not used_up:
            lines.append("a callback ended it, such as EarlyStopping")
        lines.append(f"checkpoints: {self.last_checkpoint.parent}")
        lines.append(f"next: rnnorm test {shell_word(self.folder)}")
        return "\n".join(lines)


def introduction(
    about: dict[str, Any], experiment: Experiment, trainer: Trainer, folder: Path
) -> str:
    """Return lines that say what is trained, and in which run folder."""
    said = about["about"]
    lines = [f"{run_label(about)}: {said.get('title', '')}"]
    paper = said.get("paper")
    # a smaller or changed training is not of the paper's setting
    if said.get("number") is not None and not changes_of(about):
        source = f" ({paper})" if paper else ""
        lines.append(f"the paper's number{source}: {said['metric']} {said['number']}")
    elif paper:
        lines.append(f"paper: {paper}")
    if note := " ".join(said.get("note", "").split()):
        lines.append(f"note: {note}")
    if about["scale"] == "small":
        lines.append(f"scale small, not to be compared with the paper: {said['small']}")
    if "start" in about:
        lines.append(f"begins with the weights of {about['start']}")
    lines.append(experiment.summary())
    if unfrozen_populations(experiment.model) and not callbacks_of(trainer, ExactStatistics):
        lines.append("statistics: running averages, without a callback ExactStatistics")
    lines.append(f"run folder: {folder}")
    return "\n".join(lines)
