"""Load a trained model from its run folder, or from its recipe and a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rnnorm.experiments.models.recurrent_model import RecurrentModel
from rnnorm.experiments.recipe.options import data_dir_option
from rnnorm.experiments.recipe.recipe import OverrideError, read_recipe
from rnnorm.experiments.training.build import FILES, Experiment
from rnnorm.experiments.training.checkpoint import (
    check_same,
    data_state,
    load_weights,
    read_checkpoint,
)
from rnnorm.experiments.training.folder import rebuild
from rnnorm.experiments.training.run_names import checkpoint_of, is_run
from rnnorm.norm.population import BUFFERS, Population

# options that may differ between training and use
USE_MAY_CHANGE = (
    "data_dir",
    *FILES,
    "batch_size",
    "beam",
    "eval_batch_size",
    "eval_length",
    "eval_size",
    "limit",
    "norm_options.horizon",
    "seed",
    "statistics",
    "test_by",
    "train_size",
    "unit",
    "val_by",
)
# options that may also differ where the population statistics are taken again
_ESTIMATED = ("norm_options.population",)
_TRAINING = re.compile(
    r"--(optimizer\b|lr_scheduler\b|trainer\.(max|min|gradient|accumulate_grad|limit_train|limit_val"
    r"|overfit|val_check|check_val|log_every|devices\b|num_nodes\b|strategy\b))"
)


Model = TypeVar("Model", bound=RecurrentModel)


class Trained(NamedTuple):
    """A trained model, its data module and its checkpoint.

    Attributes:
        experiment: model and data; the data are not read.
        state: all that the checkpoint holds.
        checkpoint: its file.
        folder: the run folder, or None for a checkpoint outside the folder's ``checkpoints``.
        run: the run folder or recipe that was named.
    """

    experiment: Experiment
    state: dict[str, Any]
    checkpoint: Path
    folder: Path | None
    run: str | Path

    def model(self, expected: type[Model]) -> Model:
        """Return the model if it is an instance of ``expected``.

        Raises:
            ValueError: if the model is of another class; the message says which command fits it.
        """
        model = self.experiment.model
        if isinstance(model, expected):
            return model
        writes = getattr(model, "writes", RecurrentModel.writes)
        raise ValueError(
            f"the model must be {expected.kind}, that of {self.run} is not; it {writes}"
        )

    def kept(self, name: str) -> Any:
        """Return an entry of the data's state in the checkpoint, such as ``"vocabulary"``.

        Raises:
            ValueError: if the checkpoint lacks the entry.
        """
        data = self.experiment.datamodule
        entries = data_state(self.state, data)
        if not isinstance(entries, dict) or name not in entries:
            what = type(data).__name__
            raise ValueError(f"{self.checkpoint} is not a checkpoint of {what}: it has no {name}")
        return entries[name]


def load_trained(
    run: str | Path,
    checkpoint: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    scale: str | None = None,
    overrides: Sequence[str] = (),
    estimate: bool = False,
    by_trainer: bool = False,
) -> Trained:
    """Build a training's model and data, and load the weights; the data are not read.

    Args:
        run: the run folder, which knows its recipe, scale and overrides; or the recipe.
        checkpoint: a ``.ckpt`` file; with a run folder its best one by default. Where it lies in a
            run folder, that folder's ``config.yaml`` is what the recipe was.
        data_dir: where the data set's files are.
        scale: the scale it was trained at, for a checkpoint outside its run folder.
        overrides: options of LightningCLI.
        estimate: whether the caller takes the population statistics again: those of the checkpoint
            are left out then, and need not fit.
        by_trainer: whether the caller runs the model by its trainer, and so takes its options.

    Raises:
        OverrideError: if an option of training is given for a run folder or its checkpoint, or one
            of a trainer that does not run the model.
        ValueError: if the checkpoint does not fit the model and data.
        FileNotFoundError: if the checkpoint is missing.
    """
    for override in overrides:
        if override.startswith("--trainer.") and not by_trainer:
            raise OverrideError(f"{override} has no effect: no trainer runs the model here")
    checkpoint = checkpoint_of(run, checkpoint)
    state, options = read_checkpoint(checkpoint), [*data_dir_option(data_dir), *overrides]
    folder, recipe = (Path(run), None) if is_run(run) else (checkpoint.parent.parent, str(run))
    if is_run(folder):
        for override in overrides:
            if _TRAINING.match(override):
                raise OverrideError(f"{override} has no effect: the run in {folder} is trained")
        experiment, _ = rebuild(folder, recipe, scale, options)
    else:
        experiment = Experiment(read_recipe(str(run), scale or "paper").config, options)
    model, data = experiment.model, experiment.datamodule
    check_same(state, model, data, checkpoint, free=(*USE_MAY_CHANGE, *_ESTIMATED))
    if estimate:
        own = model.state_dict()
        for name, module in model.named_modules():
            if isinstance(module, Population):
                entries = [f"{name}.{buffer}" for buffer in BUFFERS]
                state["state_dict"].update((entry, own[entry]) for entry in entries)
    else:
        try:
            check_same(state, model, data, checkpoint, free=USE_MAY_CHANGE)
        except ValueError as error:
            remedy = "rnnorm test --estimate takes other population statistics"
            raise ValueError(f"{error}; {remedy}") from None
    load_weights(model, state, checkpoint)
    inside = is_run(folder) and checkpoint.resolve().parent == (folder / "checkpoints").resolve()
    return Trained(experiment, state, checkpoint, folder if inside else None, run)
