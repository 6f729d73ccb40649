"""Whether trainings may be compared: the same data in the same order, and the same metric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rnnorm.experiments.training.differences import differences

# where the files are changes no number; a seed is compared with the other model's of the same seed
_FREE = {"data_dir", "seed"}
_DATA_OF_TRAINER = (
    "accumulate_grad_batches",
    "fast_dev_run",
    "limit_train_batches",
    "limit_val_batches",
)


def data_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration says about the data and their order."""
    arguments = config["data"].get("init_args") or {}
    trainer = config.get("trainer") or {}
    # how many rows are evaluated at once changes no number unless a text is cut into so many, or
    # not all minibatches are taken
    some = trainer.get("limit_val_batches")
    cut = arguments.get("windows") == "carried" or isinstance(some, int) or some not in (None, 1.0)
    free = _FREE if cut else _FREE | {"eval_batch_size"}
    return {
        "data": {
            "class_path": config["data"]["class_path"],
            "init_args": {k: v for k, v in arguments.items() if k not in free},
        },
        "trainer": {name: trainer.get(name) for name in _DATA_OF_TRAINER},
    }


def refuse_differences(settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse trainings that cannot be compared.

    Args:
        settings: what must be the same, by the name of the training.

    Raises:
        ValueError: naming what differs.
    """
    (first, setting), *others = settings.items()
    for name, other in others:
        if found := list(differences(setting, other)):
            raise ValueError(f"{first} and {name} cannot be compared: {'; '.join(found)}")
