"""Ways that leave the last steps of each row to the model: E2E and MIXER."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from rnnorm.experiments.data.at_least import check_at_least
from rnnorm.experiments.data.text.word_numbers import END
from rnnorm.experiments.models.bleu import sentence_bleu
from rnnorm.experiments.models.cross_entropy import cross_entropy
from rnnorm.experiments.models.feeding import Feeding, draw
from rnnorm.experiments.models.ways.teacher import Place, Task, Teacher, fed_later, steps_of


class LastSteps(Teacher):
    """The model's own output at the last steps, which grow in number."""

    def __init__(self, first: int = 0, steps: int = 2, every: int = 1) -> None:
        check_at_least(0, first=first)
        check_at_least(1, steps=steps, every=every)
        self.first, self.steps, self.every = first, steps, every

    def tail(self, epoch: int) -> int:
        """How many last steps of each row there are in an epoch, counted from 0."""
        if epoch < self.first:
            return 0
        return self.steps * (1 + (epoch - self.first) // self.every)


class E2E(LastSteps):
    """End-to-end backpropagation through the top k (Ranzato et al. 2016, §3.1.3).

    After the first epochs the k most probable symbols are fed at the last steps of each row, by
    their probabilities, which then sum to 1; the gradient goes through them. The loss stays the
    cross-entropy.

    Args:
        first: epochs of teacher forcing before.
        steps: how many last steps at first, and how many more each time.
        every: epochs between.
        top_k: symbols that are fed.

    Raises:
        ValueError: a number is too small.
    """

    def __init__(self, first: int = 0, steps: int = 2, every: int = 1, top_k: int = 5) -> None:
        super().__init__(first, steps, every)
        check_at_least(1, top_k=top_k)
        self.top_k = top_k

    def feeding(self, task: Task, place: Place) -> Feeding:
        """The truth, then mixtures."""
        teacher = super().feeding(task, place)
        fed = fed_later(teacher.own, task.lengths)
        own = fed & (steps_of(fed) >= task.lengths - self.tail(place.epoch))
        return teacher._replace(own=own, choose=self._top)

    def _top(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        found = scores.topk(min(self.top_k, scores.size(1)), 1)
        # a softmax over some of the scores is the softmax over all, divided by its sum over these
        return found.indices, found.values.softmax(1)


class Mixer(LastSteps):
    r"""MIXER (Ranzato et al. 2016): cross-entropy, and REINFORCE on the last steps of each row.

    The last steps draw, and a row that draws goes on up to its end symbol, or as many steps beyond
    the reference. The reward r is BLEU of the sentence, that with which it begins included; a
    linear function of the features, which are left alone by its gradient, is trained to expect it:

    .. math::
        -\sum_t (r - \bar r_t) \log p(w_t) + \sum_t (r - \bar r_t)^2

    Args:
        first: epochs of cross-entropy alone.
        steps: how many last steps at first, and how many more each time.
        every: epochs between.

    Raises:
        ValueError: a number is too small.
    """

    def loss(self, task: Task, place: Place) -> dict[str, Tensor]:
        """The mean over all symbols, of the truth and drawn."""
        tail = self.tail(place.epoch)
        if not tail:
            return super().loss(task, place)
        assert task.baseline is not None
        written = task.write(self.feeding(task, place))
        given = written.steps < (task.lengths - tail)[written.rows]
        longest = len(written.chosen)
        target = torch.cat([task.target, task.target.new_full((tail, len(task.lengths)), END)])
        drawn_from = steps_of(written.chosen) >= task.lengths - tail
        symbols = torch.where(drawn_from, written.chosen, target[:longest])
        losses = cross_entropy(task.scores(written.features), written.of(symbols), reduction="none")
        reward = sentence_bleu(symbols, task.target).to(losses)[written.rows]
        expected = task.baseline(written.features.detach())
        advantage = torch.where(given, 1.0, reward - expected.detach())
        found = mse_loss(expected[~given], reward[~given])
        return {
            "loss": (advantage * losses).mean() + found,
            "reward": reward[~given].mean(),
            "baseline_error": found.detach(),
        }

    def feeding(self, task: Task, place: Place) -> Feeding:
        """The truth, then draws."""
        tail = self.tail(place.epoch)
        # what stands behind the reference is never fed
        truth = torch.cat([task.truth, task.truth.new_full((tail, len(task.lengths)), END)])
        own = torch.ones(len(truth) + 1, len(task.lengths), dtype=torch.bool, device=truth.device)
        # the step before the first that is fed its own draws it
        own &= steps_of(own) > (task.lengths - tail).clamp(min=0)
        own &= steps_of(own) <= task.lengths + tail
        return Feeding(truth, own, task.lengths + tail, draw, stops=True)
