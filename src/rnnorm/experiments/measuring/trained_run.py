"""A run folder's model with its best weights, and a minibatch of its data if they are there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule

from rnnorm.experiments.measuring.loading import load_trained
from rnnorm.experiments.measuring.outcome import Outcome, read_outcome
from rnnorm.experiments.training.building import FILES
from rnnorm.experiments.training.checkpoint_names import BEST
from rnnorm.experiments.training.checkpoints import data_state


@dataclass(frozen=True)
class TrainedRun:
    """What a report draws from.

    Attributes:
        name: what it is called.
        outcome: what came out of it.
        weights: which weights the model has, such as ``epoch 7``.
        model: the model.
        data: the data, loaded if there is a minibatch.
        batch: a training minibatch, or None.
        why: why there is none.
    """

    name: str
    outcome: Outcome
    weights: str
    model: LightningModule
    data: LightningDataModule
    batch: Any
    why: str


def read_trained_run(folder: Path, name: str, data_dir: str | Path | None = None) -> TrainedRun:
    """Read a run folder, with the weights of its best epoch if there was a validation.

    Nothing is downloaded: data that are neither named here nor in the run nor come along are not
    there.

    Args:
        folder: the run folder; nothing in it is written.
        name: what to call it.
        data_dir: where the data set's files are.

    Raises:
        FileNotFoundError: there is no run, or it has no checkpoint yet.
        ValueError: a file of it is broken or of another version.
    """
    outcome = read_outcome(folder)
    built, state, checkpoint, _ = load_trained(folder, data_dir=data_dir)
    data, batch, why = built.datamodule, None, ""
    given = dict(data.hparams)
    named = any(given.get(name) for name in ("data_dir", *FILES))
    if "data_dir" in given and not named and given.get("dataset") != "digits":
        why = "the data are not given: name their folder with --data-dir"
    else:
        try:
            built.set_up("fit")
            data.load_state_dict(data_state(state, data))
            batch = next(iter(data.train_dataloader()))
        except (ValueError, OSError) as error:
            why = f"the data cannot be read: {error}"
    best = checkpoint.name == BEST
    return TrainedRun(
        name,
        outcome,
        f"epoch {state['epoch'] + 1}" if best else f"step {state['global_step']}",
        built.model,
        data,
        batch,
        why,
    )
