"""Writes symbol after symbol, whatever is fed: the truth, choices, mixtures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rnnorm.experiments.data.text.vocabulary import END

#: from scores ``(R, V)`` to K symbols of each row and their weights, ``(R, K)`` each
Choose = Callable[[Tensor], tuple[Tensor, Tensor]]


class Network(Protocol):
    """What is run: a recurrent layer between an embedding and a softmax."""

    def embed(self, symbols: Tensor) -> Tensor:
        """Inputs of the layer, of the shape of the symbols and as many features."""

    def scores(self, features: Tensor) -> Tensor:
        """Scores of all symbols ``(·, V)``."""

    def steps(
        self, x: Tensor, at: Any, step: int, lengths: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Take steps whose inputs are known, in one call of the layer.

        Args:
            x: embedded symbols ``(T, B, ·)``.
            at: what the rows go on from.
            step: index of the first.
            lengths: how many steps each row takes ``(B,)``, if not all take T.

        Returns:
            features ``(T, B, H)``, and what the rows go on from after their last step.
        """

    def rows(self, at: Any, kept: Tensor) -> Any:
        """What some of the rows go on from."""


class Feeding(NamedTuple):
    """What is fed at each step.

    Attributes:
        truth: symbols of the reference ``(T, B)``, one step late: the first is that of a beginning.
        own: where the network's choice after the step before is fed instead ``(T + 1, B)``; the
            last choice is made, but fed no more.
        lengths: how many steps each row takes at most ``(B,)``, T or fewer.
        choose: makes the choice.
        stops: whether a row ends where it chooses the end symbol.
    """

    truth: Tensor
    own: Tensor
    lengths: Tensor
    choose: Choose
    stops: bool


class Written(NamedTuple):
    """What came out, over the N frames of all rows that were run.

    Attributes:
        features: what the scores are made of ``(N, H)``.
        steps: step of each frame ``(N,)``.
        rows: its row ``(N,)``.
        chosen: symbols that the network chose after each step ``(T, B)``, the end symbol where it
            chose none.
        at: what the rows that took the last step go on from.
    """

    features: Tensor
    steps: Tensor
    rows: Tensor
    chosen: Tensor
    at: Any

    def of(self, symbols: Tensor) -> Tensor:
        """Symbols ``(T, B)`` of the frames, ``(N,)``."""
        return symbols[self.steps, self.rows]


def most_probable(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The symbol with the highest score."""
    symbols = scores.argmax(1, keepdim=True)
    return symbols, torch.ones_like(symbols, dtype=scores.dtype)


def draw(scores: Tensor) -> tuple[Tensor, Tensor]:
    """A symbol from the distribution that the scores are of."""
    # sums of a half type would leave out what is improbable
    wide = torch.promote_types(scores.dtype, torch.float32)
    # multinomial would draw a number for every symbol
    sums = scores.detach().softmax(1, dtype=wide).cumsum(1)
    symbols = torch.searchsorted(sums, torch.rand_like(sums[:, :1]) * sums[:, -1:], right=True)
    symbols = symbols.clamp(max=scores.size(1) - 1)
    return symbols, torch.ones_like(symbols, dtype=scores.dtype)


def draw_at(scores: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """A symbol of each row ``(R,)`` by its scores ``(R, V)`` over a temperature, the best at 0."""
    if temperature == 0:
        return scores.argmax(1)
    # the highest is 0, so that no temperature makes it overflow
    scaled = (scores - scores.amax(1, keepdim=True)).double() / temperature
    return scaled.softmax(1).multinomial(1, generator=generator).squeeze(1)


def write(network: Network, at: Any, feeding: Feeding) -> Written:
    """Write: the one loop of all ways to train, and of decoding.

    Args:
        network: what is run.
        at: what it goes on from before the first symbol.
        feeding: what is fed.
    """
    truth, own, lengths, choose, stops = feeding
    rows, chosen = torch.arange(len(lengths), device=truth.device), torch.zeros_like(truth)
    frames: list[tuple[Tensor, Tensor, Tensor]] = []
    t, fed = 0, _mixture(truth[0])
    while len(rows):
        n = _known_steps(own[t + 1 :, rows], lengths[rows] - t)
        symbols, weights = fed
        x = (weights.unsqueeze(2) * network.embed(symbols)).sum(1).unsqueeze(0)
        if n > 1:
            x = torch.cat([x, network.embed(truth[t + 1 : t + n, rows])])
        left = (lengths[rows] - t).clamp(max=n)
        features, at = network.steps(x, at, t, left if n > 1 else None)
        step, row = (torch.arange(n, device=rows.device).unsqueeze(1) < left).nonzero().T
        frames.append((features[step, row], step + t, rows[row]))
        t += n
        mine, going_on = own[t, rows], lengths[rows] > t
        choice = choose(network.scores(features[-1, mine])) if mine.any() else None
        if choice is not None:
            chosen[t - 1, rows[mine]] = choice[0][:, 0]
            if stops:
                going_on[mine] &= choice[0][:, 0] != END
        if not going_on.any():
            break
        symbols, weights = _mixture(truth[t, rows], mine, choice)
        if not going_on.all():
            # a row that has ended costs nothing more
            rows, at = rows[going_on], network.rows(at, going_on)
            symbols, weights = symbols[going_on], weights[going_on]
        fed = symbols, weights
    features, steps, of = (torch.cat(parts) for parts in zip(*frames, strict=True))
    return Written(features, steps, of, chosen, at)


def _mixture(
    truth: Tensor, mine: Tensor | None = None, choice: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """K symbols that are fed to each row, and their weights: a choice, or the truth alone."""
    symbols = truth.unsqueeze(1)
    if mine is None or choice is None:
        return symbols, torch.ones_like(symbols)
    symbols = symbols.repeat(1, choice[0].size(1))
    weights = torch.zeros_like(symbols, dtype=choice[1].dtype)
    weights[:, 0] = 1
    symbols[mine], weights[mine] = choice
    return symbols, weights


def _known_steps(own: Tensor, left: Tensor) -> int:
    """Steps until the next one after which a choice is made, or until all rows end."""
    longest = int(left.max())
    choices = own[:longest].any(1).nonzero()
    return int(choices[0]) + 1 if len(choices) else longest


def writing_freely(rows: int, limit: int, device: torch.device) -> Feeding:
    """Each row's most probable symbol is fed, up to the end symbol or the limit."""
    own = torch.ones(limit + 1, rows, dtype=torch.bool, device=device)
    own[0] = False
    truth = torch.full((limit, rows), END, device=device)
    lengths = torch.full((rows,), limit, device=device)
    return Feeding(truth, own, lengths, most_probable, stops=True)
