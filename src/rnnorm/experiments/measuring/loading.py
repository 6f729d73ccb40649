"""A trained model, from its run folder, or from its recipe and a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rnnorm.experiments.training.building import FILES, Built
from rnnorm.experiments.training.checkpoint_file import read_checkpoint
from rnnorm.experiments.training.checkpoints import check_same, data_state, load_weights
from rnnorm.experiments.training.options import data_dir_option
from rnnorm.experiments.training.recipe import OverrideError, read_recipe
from rnnorm.experiments.training.run_folder import rebuild
from rnnorm.experiments.training.words import checkpoint_of, is_run

# what may differ between training and use
_FREE = (
    "data_dir",
    *FILES,
    "batch_size",
    "beam",
    "eval_batch_size",
    "eval_length",
    "eval_size",
    "limit",
    "seed",
    "statistics",
    "test_by",
    "train_size",
    "val_by",
)
_TRAINING = re.compile(
    r"--(optimizer\b|lr_scheduler\b|trainer\.(max|min|gradient|accumulate_grad|limit_train|limit_val"
    r"|overfit|val_check|check_val|log_every|devices\b|num_nodes\b|strategy\b))"
)


class Trained(NamedTuple):
    """A trained model.

    Attributes:
        built: model and data; the data are not read.
        state: all that the checkpoint holds.
        checkpoint: its file.
        folder: the run folder, or None for a checkpoint that is none of its own.
    """

    built: Built
    state: dict[str, Any]
    checkpoint: Path
    folder: Path | None

    def kept(self, name: str) -> Any:
        """What the checkpoint holds of its data, such as their ``"vocabulary"``.

        Raises:
            ValueError: it holds none.
        """
        data = self.built.datamodule
        held = data_state(self.state, data)
        if not isinstance(held, dict) or name not in held:
            what = type(data).__name__
            raise ValueError(f"{self.checkpoint} is no checkpoint of {what}: it has no {name}")
        return held[name]


def load_trained(
    run: str | Path,
    checkpoint: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    scale: str | None = None,
    overrides: Sequence[str] = (),
) -> Trained:
    """Build a training's model and data, and load the weights; the data are not read.

    Args:
        run: the run folder, which knows its recipe, scale and overrides; or the recipe.
        checkpoint: a ``.ckpt`` file; with a run folder its best one by default. Where it lies in a
            run folder, that folder's ``config.yaml`` is what the recipe was.
        data_dir: where the data set's files are.
        scale: the scale it was trained at, for a checkpoint outside its run folder.
        overrides: options of LightningCLI.

    Raises:
        OverrideError: an option is one of training, and ``run`` or its checkpoint's folder a run.
        ValueError: the checkpoint is not one of this model and data.
        FileNotFoundError: there is no such checkpoint.
    """
    checkpoint = checkpoint_of(run, checkpoint)
    state, options = read_checkpoint(checkpoint), [*data_dir_option(data_dir), *overrides]
    folder, recipe = (Path(run), None) if is_run(run) else (checkpoint.parent.parent, str(run))
    if is_run(folder):
        for override in overrides:
            if _TRAINING.match(override):
                raise OverrideError(f"{override} has no effect: the run in {folder} is trained")
        built, _ = rebuild(folder, recipe, scale, options)
    else:
        built = Built(read_recipe(str(run), scale or "paper").config, options)
    check_same(state, built.model, built.datamodule, checkpoint, free=_FREE)
    load_weights(built.model, state, checkpoint)
    own = is_run(folder) and checkpoint.resolve().parent == (folder / "checkpoints").resolve()
    return Trained(built, state, checkpoint, folder if own else None)
