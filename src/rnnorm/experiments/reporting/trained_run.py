"""A run that a report draws: its outcome, and its model and data with a minibatch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule

from rnnorm.experiments.trained.load import load_trained
from rnnorm.experiments.trained.outcome import Outcome, read_outcome
from rnnorm.experiments.training.build import FILES
from rnnorm.experiments.training.checkpoint import data_state
from rnnorm.experiments.training.run_names import BEST


@dataclass(frozen=True)
class TrainedRun:
    """A run with its model and data, as a report draws it.

    Attributes:
        name: the name of the run in the report.
        outcome: the outcome of the run.
        weights: which weights the model has, such as ``epoch 7``.
        model: the model.
        arguments: the arguments that the model is made of.
        data: the data, loaded if there is a minibatch.
        batch: a training minibatch, or None.
        why: why there is no minibatch.
    """

    name: str
    outcome: Outcome
    weights: str
    model: LightningModule
    arguments: dict[str, Any]
    data: LightningDataModule
    batch: Any
    why: str


def read_trained_run(folder: Path, name: str, data_dir: str | Path | None = None) -> TrainedRun:
    """Read a run folder, with the weights of its best epoch if there was a validation.

    No data are downloaded: those that need files are read if the run or ``data_dir`` names them.

    Args:
        folder: the run folder; nothing in it is written.
        name: the name of the run in the report.
        data_dir: where the data set's files are.

    Raises:
        FileNotFoundError: if there is no run, or the run has no checkpoint yet.
        ValueError: if a file of the run is broken or of another version.
    """
    outcome = read_outcome(folder)
    experiment, state, checkpoint, *_ = load_trained(folder, data_dir=data_dir)
    data, batch, why = experiment.datamodule, None, ""
    given = dict(data.hparams)
    named = any(given.get(name) for name in ("data_dir", *FILES))
    if "data_dir" in given and not named and given.get("dataset") != "digits":
        why = "the data are not given: name their folder with --data-dir"
    else:
        try:
            experiment.set_up("fit")
            data.load_state_dict(data_state(state, data))
            batch = next(iter(data.train_dataloader()))
        except (ValueError, OSError) as error:
            why = f"the data cannot be read: {error}"
    best = checkpoint.name == BEST
    return TrainedRun(
        name,
        outcome,
        f"epoch {state['epoch'] + 1}" if best else f"step {state['global_step']}",
        experiment.model,
        experiment.config["model"]["init_args"].as_dict(),
        data,
        batch,
        why,
    )
