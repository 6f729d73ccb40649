"""Data as demonstrator."""

from __future__ import annotations

from torch import Tensor

from rnnorm.experiments.models.ways.teacher import (
    Place,
    Task,
    Teacher,
    fed_later,
    likelihood_loss,
)


class Dad(Teacher):
    """Data as demonstrator (Venkatraman et al. 2015): the data, and what the model makes of them.

    A minibatch is read twice, with the truth fed and with the model's most probable symbols, and
    the loss is the mean of both. The truth is the target either way.
    """

    def loss(self, task: Task, place: Place) -> dict[str, Tensor]:
        """The mean of two cross-entropies."""
        teacher = self.feeding(task, place)
        alone = teacher._replace(own=fed_later(teacher.own, task.lengths))
        return {"loss": (likelihood_loss(task, teacher) + likelihood_loss(task, alone)) / 2}
