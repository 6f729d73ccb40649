"""A trained model, from its recipe and a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rnnorm.experiments.training.building import Built, as_text, data_dir_option
from rnnorm.experiments.training.checkpoints import check_same, read_checkpoint
from rnnorm.experiments.training.recipe import read_recipe
from rnnorm.experiments.training.run_folder import rebuild

# what may differ between training and use
_FREE = (
    "data_dir",
    "file",
    "batch_size",
    "eval_batch_size",
    "eval_length",
    "eval_size",
    "seed",
    "test_by",
    "train_size",
    "val_by",
)


def load_trained(
    recipe: str,
    checkpoint: str | Path,
    *,
    data_dir: str | Path | None = None,
    scale: str | None = None,
    overrides: Sequence[str] = (),
) -> tuple[Built, dict[str, Any]]:
    """Build a recipe's model and data, and load the weights; the data are not read.

    Args:
        recipe: the recipe it was trained with.
        checkpoint: a ``.ckpt`` file. In a run folder, that folder's ``config.yaml`` is what the
            recipe was when it was trained, with its scale and overrides.
        data_dir: where the data set's files are.
        scale: the scale it was trained at, for a checkpoint outside its run folder.
        overrides: options of LightningCLI.

    Returns:
        Model and data, and all that the checkpoint holds.

    Raises:
        ValueError: the checkpoint is not one of this model and data.
        FileNotFoundError: there is no such checkpoint.
    """
    chosen, state = read_recipe(recipe, scale or "paper"), read_checkpoint(checkpoint)
    folder, options = Path(checkpoint).parent.parent, [*data_dir_option(data_dir), *overrides]
    if (folder / "run.json").is_file():
        built, _ = rebuild(folder, recipe, scale, options)
    else:
        built = Built(as_text(chosen.config), options)
    check_same(state, built.model, built.datamodule, checkpoint, free=_FREE)
    built.model.load_state_dict(state["state_dict"])
    return built, state
