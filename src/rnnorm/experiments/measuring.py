"""Measure a trained model on the test set: what ``rnnorm test`` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rnnorm.experiments.building import Built, as_text, data_dir_option, quiet_lightning
from rnnorm.experiments.checkpoints import check_same, read_checkpoint
from rnnorm.experiments.exact_statistics import estimate_statistics
from rnnorm.experiments.progress import progress_bars
from rnnorm.experiments.recipe import read_recipe
from rnnorm.experiments.run_folder import read_run

# what may differ between training and test
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


def measure(
    recipe: str,
    checkpoint: str | Path,
    *,
    data_dir: str | Path | None = None,
    scale: str | None = None,
    estimate: bool = False,
    overrides: Sequence[str] = (),
) -> dict[str, float]:
    """Measure a trained model on the test set.

    Args:
        recipe: the recipe it was trained with.
        checkpoint: a ``.ckpt`` file. In a run folder, that folder's ``config.yaml`` is what the
            recipe was when it was trained, with its scale and overrides.
        data_dir: where the data set's files are; without it they are downloaded.
        scale: the scale it was trained at, for a checkpoint outside its run folder.
        estimate: first take the population statistics anew, as the exact average over the
            training set (:func:`rnnorm.update_bn`).
        overrides: options of LightningCLI.

    Returns:
        The test metrics by name.

    Raises:
        ValueError: the checkpoint is not one of this model and data.
        FileNotFoundError: there is no such checkpoint, or ``data_dir`` lacks files.
    """
    config = as_text(read_recipe(recipe, scale or "paper").config)
    state = read_checkpoint(checkpoint)
    folder = Path(checkpoint).parent.parent
    if (folder / "run.json").is_file():
        config, _ = read_run(folder, recipe, scale)
    built = Built(config, [*data_dir_option(data_dir), *overrides])
    check_same(state, built.model, built.datamodule, checkpoint, free=_FREE)
    built.set_up("test")
    built.datamodule.load_state_dict(state.get(type(built.datamodule).__qualname__, {}))
    built.model.load_state_dict(state["state_dict"])
    if estimate:
        estimate_statistics(built.datamodule.train_dataloader(), built.model)
    trainer = built.make_trainer(progress_bars())
    with quiet_lightning():
        metrics = trainer.test(built.model, datamodule=built.datamodule, verbose=False)
    return dict(metrics[0])
