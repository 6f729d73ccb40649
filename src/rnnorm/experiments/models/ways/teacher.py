"""A way to train a generator: what is fed at a step, and what the loss is. Here the truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rnnorm.experiments.models.cross_entropy import cross_entropy
from rnnorm.experiments.models.feeding import Feeding, Written, most_probable


class Place(NamedTuple):
    """How far the training is: minibatches and epochs before this one."""

    minibatch: int = 0
    epoch: int = 0


class Task(NamedTuple):
    """A minibatch to learn from.

    Attributes:
        write: runs the network.
        scores: those of all symbols, of features.
        truth: the symbols before those of the target ``(T, B)``: what teacher forcing feeds.
        target: symbols to write ``(T, B)``.
        lengths: how many each row has ``(B,)``.
        symbols: how many there are to choose from.
        baseline: the reward that is expected ``(N,)``, of features ``(N, H)``; MIXER's alone.
    """

    write: Callable[[Feeding], Written]
    scores: Callable[[Tensor], Tensor]
    truth: Tensor
    target: Tensor
    lengths: Tensor
    symbols: int
    baseline: Callable[[Tensor], Tensor] | None = None


class Teacher:
    """Teacher forcing: the truth is fed, and the loss is the cross-entropy of the next symbol."""

    def loss(self, task: Task, place: Place) -> dict[str, Tensor]:
        """What is minimised, ``"loss"``, and what else there is to log.

        Args:
            task: the minibatch.
            place: how far the training is.
        """
        return {"loss": likelihood_loss(task, self.feeding(task, place))}

    def feeding(self, task: Task, place: Place) -> Feeding:
        """What is fed."""
        own = torch.zeros(len(task.target) + 1, len(task.lengths), dtype=torch.bool)
        own = own.to(task.target.device)
        return Feeding(task.truth, own, task.lengths, most_probable, stops=False)


def likelihood_loss(task: Task, feeding: Feeding) -> Tensor:
    """Mean cross-entropy of a minibatch's symbols, in nats."""
    written = task.write(feeding)
    return cross_entropy(task.scores(written.features), written.of(task.target))


def steps_of(like: Tensor) -> Tensor:
    """Indices of the steps ``(T, 1)``."""
    return torch.arange(len(like), device=like.device).unsqueeze(1)


def fed_later(like: Tensor, lengths: Tensor) -> Tensor:
    """All steps but the first, which only knows the beginning, up to the end of each row."""
    steps = steps_of(like)
    return (steps >= 1) & (steps < lengths)
