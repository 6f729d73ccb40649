"""What changes what is learnt from which minibatch, and so makes another training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rnnorm.experiments.training.building import FILES, Built
from rnnorm.experiments.training.differences import differences
from rnnorm.experiments.training.recipe import read_config

#: arguments of data that may change when a training goes on
FREE = ("data_dir", *FILES, "eval_batch_size")
# what of the trainer may not
_LEARNING = (
    "accumulate_grad_batches",
    "fast_dev_run",
    "gradient_clip_algorithm",
    "gradient_clip_val",
    "limit_train_batches",
    "precision",
)
# which of its callbacks may not: others watch, or take statistics
_LEARNING_CALLBACKS = (
    "rnnorm.lightning.SlopeAnnealing",
    "lightning.pytorch.callbacks.EMAWeightAveraging",
    "lightning.pytorch.callbacks.GradientAccumulationScheduler",
    "lightning.pytorch.callbacks.WeightAveraging",
)


def refuse_other_learning(folder: Path, built: Built) -> None:
    """Refuse what a checkpoint would undo, and ``run.json`` would not tell where there is none.

    Args:
        folder: of the run that goes on.
        built: as it is to go on.

    Raises:
        ValueError: model, data, seed, optimiser, schedule or trainer learn otherwise.
    """
    # built, it has the defaults of arguments that a later patch has added
    before, now = Built(read_config(folder / "config.yaml")).as_dict(), built.as_dict()
    if other := list(differences(_learning(before), _learning(now), said="was {!r} and is {!r}")):
        raise ValueError(
            f"the run in {folder} was trained otherwise: {'; '.join(other)}, so begin a new "
            "training with another --run-dir"
        )


def _learning(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a whole configuration says about what learns, from which data, and how."""
    data, trainer = config["data"], config["trainer"]
    # that of the data is the one of all
    given = {k: v for k, v in data["init_args"].items() if k not in (*FREE, "seed")}
    callbacks = {c["class_path"]: c.get("init_args") for c in trainer["callbacks"] or []}
    return {
        "seed_everything": config["seed_everything"],
        "model": config["model"],
        "data": {**data, "init_args": given},
        "optimizer": config.get("optimizer"),
        "lr_scheduler": config.get("lr_scheduler"),
        "trainer": {
            **{name: trainer[name] for name in _LEARNING},
            "callbacks": {name: callbacks.get(name) for name in _LEARNING_CALLBACKS},
        },
    }
