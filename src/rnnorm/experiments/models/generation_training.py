"""Ways to train a generator: what is fed at a step, and what the loss is."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from rnnorm.experiments.console import check_at_least
from rnnorm.experiments.data.text.vocabulary import END
from rnnorm.experiments.models.bleu import sentence_bleu
from rnnorm.experiments.models.feeding import Feeding, Written, draw, most_probable
from rnnorm.experiments.models.measures import cross_entropy


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


class Scheduled(Teacher):
    r"""Scheduled sampling: each symbol is the truth with a probability that falls to 0.

    Else it is drawn from the model's own distribution (Bengio et al. 2015, §2.4):

    .. math::
        \epsilon_i = \max(\epsilon, k - c i), \quad k^i, \quad k / (k + e^{i/k})

    Args:
        decay: ``"linear"``, ``"exponential"`` or ``"inverse_sigmoid"``.
        k: of the decay: at most 1 if linear, below 1 if exponential, at least 1 if it is the
            inverse sigmoid; i counts steps of the optimiser.
        c: what each minibatch takes away (linear).
        floor: ε, the least probability (linear).

    Raises:
        ValueError: if an argument is none of these.
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
        """Probability of the truth."""
        if self.decay == "linear":
            return max(self.floor, self.k - self.c * minibatch)
        if self.decay == "exponential":
            return float(self.k**minibatch)
        # k / (k + exp(i / k)), where the power would be too large for a number
        return 1 / (1 + math.exp(min(700.0, minibatch / self.k - math.log(self.k))))

    def feeding(self, task: Task, place: Place) -> Feeding:
        """The truth or a draw, by a coin for each symbol."""
        teacher = super().feeding(task, place)
        coins = torch.rand(teacher.own.shape, device=teacher.own.device)
        own = (coins >= self.truth(place.minibatch)) & fed_later(teacher.own, task.lengths)
        return teacher._replace(own=own, choose=draw)


class Always(Scheduled):
    """Always sampling, from the first minibatch on (Bengio et al. 2015, a control)."""

    def __init__(self) -> None:
        super().__init__("linear", k=1.0)

    def truth(self, minibatch: int) -> float:
        """Never."""
        return 0.0


class Uniform(Scheduled):
    """Scheduled sampling of symbols that are all as probable (Bengio et al. 2015, a control)."""

    def feeding(self, task: Task, place: Place) -> Feeding:
        """The truth or any symbol: known beforehand, so that nothing is chosen on the way."""
        scheduled = super().feeding(task, place)
        anything = torch.randint_like(scheduled.truth, task.symbols)
        truth = torch.where(scheduled.own[:-1], anything, scheduled.truth)
        return scheduled._replace(truth=truth, own=torch.zeros_like(scheduled.own))


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
        ValueError: if a number is too small.
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
        ValueError: if a number is too small.
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
    """A way to train, by its name.

    Args:
        name: one of ``WAYS``.
        options: arguments of its class.

    Raises:
        ValueError: if there is no such way, or it has no such option.
    """
    if name not in WAYS:
        raise ValueError(f"training must be one of {', '.join(WAYS)}, got {name!r}")
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
