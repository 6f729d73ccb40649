"""What of Lightning's trainer a training here cannot have."""

from __future__ import annotations

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import StochasticWeightAveraging, Timer

from rnnorm.experiments.training.building import Built

# what of the trainer may not be 0; of its ends any number below is no limit, the counts have none
_ENDS = ("max_epochs", "max_steps")
_COUNTS = (
    "accumulate_grad_batches",
    "check_val_every_n_epoch",
    "limit_train_batches",
    "val_check_interval",
)


def refuse_trainer(built: Built) -> None:
    """Refuse a trainer that would take no step, that Lightning divides by, or that cannot clip.

    And one whose average no checkpoint would hold, or whose minibatches would not be the same.

    Raises:
        ValueError: it is such a one; the message names the argument.
    """
    given = built.config_init["trainer"]
    if any(isinstance(c, StochasticWeightAveraging) for c in given["callbacks"] or []):
        raise ValueError(
            "trainer.callbacks may not hold StochasticWeightAveraging, which takes its average for "
            "the weights after the last checkpoint: lightning.pytorch.callbacks.EMAWeightAveraging "
            "is in every checkpoint"
        )
    for name in (*_ENDS, *_COUNTS):
        value = given[name]
        counted = isinstance(value, int | float)
        if counted and (value == 0 or (value < 0 and name in _COUNTS)):
            raise ValueError(f"trainer.{name} must be above 0 in a training, got {value}")
    if few := given["overfit_batches"]:
        raise ValueError(
            f"trainer.overfit_batches must be 0, got {few}: the order of each epoch is another, so "
            "that it would not take the same minibatches"
        )
    try:
        Timer(given["max_time"])
    except MisconfigurationException:
        raise ValueError(
            f"trainer.max_time must be of the form DD:HH:MM:SS, got {given['max_time']!r}"
        ) from None
    clip = given["gradient_clip_val"]
    if clip is not None and not clip >= 0:
        raise ValueError(f"trainer.gradient_clip_val must be 0 (no clipping) or above, got {clip}")
