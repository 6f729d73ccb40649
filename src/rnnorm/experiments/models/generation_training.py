"""Ways to train a generator, each defined by the symbols that are fed and the loss."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from rnnorm.experiments.console import check_at_least, check_choice
from rnnorm.experiments.data.text.vocabulary import END
from rnnorm.experiments.models.bleu import sentence_bleu
from rnnorm.experiments.models.feeding import Feeding, Written, draw, most_probable
from rnnorm.experiments.models.measures import cross_entropy


class Progress(NamedTuple):
    """The progress of a training: minibatches and epochs before this one."""

    minibatch: int = 0
    epoch: int = 0


class Task(NamedTuple):
    """A minibatch to learn from.

    Attributes:
        write: runs the network.
        scores: maps features to the scores of all symbols.
        truth: the symbols that teacher forcing feeds ``(T, B)``: the target one step late.
        target: symbols to write ``(T, B)``.
        lengths: symbols of each row ``(B,)``.
        symbols: size of the vocabulary.
        baseline: maps features ``(N, H)`` to the expected reward ``(N,)``; for MIXER alone.
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

    def loss(self, task: Task, progress: Progress) -> dict[str, Tensor]:
        """Compute the ``"loss"`` to minimise, and other values to log.

        Args:
            task: the minibatch.
            progress: the progress of the training.
        """
        return {"loss": likelihood_loss(task, self.feeding(task, progress))}

    def feeding(self, task: Task, progress: Progress) -> Feeding:
        """Return the symbols to feed: the truth."""
        own = torch.zeros(len(task.target) + 1, len(task.lengths), dtype=torch.bool)
        own = own.to(task.target.device)
        return Feeding(task.truth, own, task.lengths, most_probable, stops=False)


def likelihood_loss(task: Task, feeding: Feeding) -> Tensor:
    """Compute the mean cross-entropy of a minibatch's symbols, in nats."""
    written = task.write(feeding)
    return cross_entropy(task.scores(written.features), written.of(task.target))


def steps_of(like: Tensor) -> Tensor:
    """Return the indices of the steps ``(T, 1)``."""
    return torch.arange(len(like), device=like.device).unsqueeze(1)


def fed_later(like: Tensor, lengths: Tensor) -> Tensor:
    """Return a mask of each row's steps but the first, which is fed the start symbol."""
    steps = steps_of(like)
    return (steps >= 1) & (steps < lengths)


class Scheduled(Teacher):
    r"""Scheduled sampling: each symbol is the truth with a decreasing probability.

    Otherwise it is drawn from the model's own distribution (Bengio et al. 2015, §2.4):

    .. math::
        \epsilon_i = \max(\epsilon, k - c i), \quad k^i, \quad k / (k + e^{i/k})

    Args:
        decay: ``"linear"``, ``"exponential"`` or ``"inverse_sigmoid"``.
        k: k of the decay: at most 1 if linear, below 1 if exponential, at least 1 if inverse
            sigmoid; i counts steps of the optimiser.
        c: decrease at each minibatch (linear).
        floor: ε, the least probability (linear).

    Raises:
        ValueError: if the decay is unknown, or a number is out of the decay's range.
    """

    def __init__(
        self,
        decay: Literal["linear", "exponential", "inverse_sigmoid"] = "inverse_sigmoid",
        k: float = 300.0,
        c: float = 0.0,
        floor: float = 0.0,
    ) -> None:
        fits = {
            "linear": 0 < k <= 1 and c >= 0 and 0 <= floor <= 1,
            "exponential": 0 < k < 1,
            "inverse_sigmoid": 1 <= k < math.inf,
        }
        if decay not in fits:
            raise ValueError(f"decay must be one of {', '.join(fits)}, got {decay!r}")
        if not fits[decay]:
            raise ValueError(
                "k must be in (0, 1] with c >= 0 and 0 <= floor <= 1 if the decay is linear, in "
                f"(0, 1) if exponential, at least 1 if inverse_sigmoid, got {decay}: k={k}, c={c}, "
                f"floor={floor}"
            )
        self.decay, self.k, self.c, self.floor = decay, k, c, floor

    def truth(self, minibatch: int) -> float:
        """Return the probability of the truth."""
        if self.decay == "linear":
            return max(self.floor, self.k - self.c * minibatch)
        if self.decay == "exponential":
            return float(self.k**minibatch)
        # k / (k + exp(i / k)), written so that the exponential does not overflow
        return 1 / (1 + math.exp(min(700.0, minibatch / self.k - math.log(self.k))))

    def feeding(self, task: Task, progress: Progress) -> Feeding:
        """Return the symbols to feed: the truth or a draw, chosen at random for each symbol."""
        teacher = super().feeding(task, progress)
        coins = torch.rand(teacher.own.shape, device=teacher.own.device)
        own = (coins >= self.truth(progress.minibatch)) & fed_later(teacher.own, task.lengths)
        return teacher._replace(own=own, choose=draw)


class Always(Scheduled):
    """Sampling at every step from the first minibatch on (Bengio et al. 2015, a control)."""

    def __init__(self) -> None:
        super().__init__("linear", k=1.0)

    def truth(self, minibatch: int) -> float:
        """Return 0: the truth is never fed."""
        return 0.0


class Uniform(Scheduled):
    """Scheduled sampling from a uniform distribution (Bengio et al. 2015, a control)."""

    def feeding(self, task: Task, progress: Progress) -> Feeding:
        """Return the symbols to feed: the truth or random ones, all drawn beforehand."""
        scheduled = super().feeding(task, progress)
        anything = torch.randint_like(scheduled.truth, task.symbols)
        truth = torch.where(scheduled.own[:-1], anything, scheduled.truth)
        return scheduled._replace(truth=truth, own=torch.zeros_like(scheduled.own))


class Dad(Teacher):
    """Data as demonstrator (Venkatraman et al. 2015): teacher forcing and free running.

    A minibatch is read twice, with the truth fed and with the model's most probable symbols, and
    the loss is the mean of both. The truth is the target of both.
    """

    def loss(self, task: Task, progress: Progress) -> dict[str, Tensor]:
        """Compute the mean of both cross-entropies."""
        teacher = self.feeding(task, progress)
        alone = teacher._replace(own=fed_later(teacher.own, task.lengths))
        return {"loss": (likelihood_loss(task, teacher) + likelihood_loss(task, alone)) / 2}


class LastSteps(Teacher):
    """Base of ways that feed the model's own output at the last steps, which grow in number."""

    def __init__(self, first: int = 0, steps: int = 2, every: int = 1) -> None:
        check_at_least(0, first=first)
        check_at_least(1, steps=steps, every=every)
        self.first, self.steps, self.every = first, steps, every

    def tail(self, epoch: int) -> int:
        """Return the number of last steps of each row in an epoch, counted from 0."""
        if epoch < self.first:
            return 0
        return self.steps * (1 + (epoch - self.first) // self.every)


class E2E(LastSteps):
    """End-to-end backpropagation through the top k (Ranzato et al. 2016, §3.1.3).

    After the first epochs the k most probable symbols are fed at the last steps of each row, by
    their probabilities, which then sum to 1; the gradient goes through them. The loss stays the
    cross-entropy.

    Args:
        first: epochs of teacher forcing at the start.
        steps: number of last steps at first, and their increase each time.
        every: epochs between increases.
        top_k: number of symbols that are fed.

    Raises:
        ValueError: if a number is too small.
    """

    def __init__(self, first: int = 0, steps: int = 2, every: int = 1, top_k: int = 5) -> None:
        super().__init__(first, steps, every)
        check_at_least(1, top_k=top_k)
        self.top_k = top_k

    def feeding(self, task: Task, progress: Progress) -> Feeding:
        """Return the symbols to feed: the truth, then mixtures of the most probable symbols."""
        teacher = super().feeding(task, progress)
        fed = fed_later(teacher.own, task.lengths)
        own = fed & (steps_of(fed) >= task.lengths - self.tail(progress.epoch))
        return teacher._replace(own=own, choose=self._top)

    def _top(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the most probable symbols, weighted by their probabilities."""
        found = scores.topk(min(self.top_k, scores.size(1)), 1)
        # the softmax over some scores is the softmax over all scores, normalised over these
        return found.indices, found.values.softmax(1)


class Mixer(LastSteps):
    r"""MIXER (Ranzato et al. 2016): cross-entropy, and REINFORCE on the last steps of each row.

    At the last steps symbols are drawn. A row with drawn symbols runs up to its end symbol, at most
    as many steps beyond the reference. The reward r is BLEU of the whole sentence. A linear
    function of the features, to which it passes no gradient, is trained to predict the reward:

    .. math::
        -\sum_t (r - \bar r_t) \log p(w_t) + \sum_t (r - \bar r_t)^2

    Args:
        first: epochs of cross-entropy alone at the start.
        steps: number of last steps at first, and their increase each time.
        every: epochs between increases.

    Raises:
        ValueError: if a number is too small.
    """

    def loss(self, task: Task, progress: Progress) -> dict[str, Tensor]:
        """Compute the mean loss over the given and the drawn symbols, and that of the baseline."""
        tail = self.tail(progress.epoch)
        if not tail:
            return super().loss(task, progress)
        assert task.baseline is not None
        written = task.write(self.feeding(task, progress))
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

    def feeding(self, task: Task, progress: Progress) -> Feeding:
        """Return the symbols to feed: the truth, then draws."""
        tail = self.tail(progress.epoch)
        # the end symbols behind the reference are never fed
        truth = torch.cat([task.truth, task.truth.new_full((tail, len(task.lengths)), END)])
        own = torch.ones(len(truth) + 1, len(task.lengths), dtype=torch.bool, device=truth.device)
        # the first draw is made one step before it is fed
        own &= steps_of(own) > (task.lengths - tail).clamp(min=0)
        own &= steps_of(own) <= task.lengths + tail
        return Feeding(truth, own, task.lengths + tail, draw, stops=True)


Way = Literal["teacher", "scheduled", "always", "uniform", "dad", "e2e", "mixer"]

WAYS: Mapping[str, type[Teacher]] = {
    "teacher": Teacher,
    "scheduled": Scheduled,
    "always": Always,
    "uniform": Uniform,
    "dad": Dad,
    "e2e": E2E,
    "mixer": Mixer,
}


def training_by_name(name: str, options: Mapping[str, Any] | None = None) -> Teacher:
    """Make a way to train by its name.

    Args:
        name: one of ``WAYS``.
        options: arguments of the class.

    Raises:
        ValueError: if the name or an option is unknown, or an option is not a number in its
            range.
    """
    check_choice(Way, training=name)
    given = dict(options or {})
    kind = WAYS[name]
    known = [*inspect.signature(kind).parameters]
    for option in given:
        if option not in known:
            near = difflib.get_close_matches(option, known)
            has = f"has {', '.join(near or known)}" if known else "has none"
            raise ValueError(
                f"training_options must be options of {name}, got {option!r}: it {has}"
            )
    try:
        return kind(**given)
    except TypeError as error:
        raise ValueError(
            f"training_options of {name} must be numbers, got {given}: {error}"
        ) from None
