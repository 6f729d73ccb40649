"""The loop that runs a network symbol by symbol, fed with the truth, choices or mixtures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rnnorm.experiments.data.text.vocabulary import END

#: maps scores ``(R, V)`` to K symbols of each row and their weights, ``(R, K)`` each
Choose = Callable[[Tensor], tuple[Tensor, Tensor]]


class Network(Protocol):
    """The network that is run: a recurrent layer between an embedding and a softmax."""

    def embed(self, symbols: Tensor) -> Tensor:
        """Return the layer's inputs: the symbols' shape with a dimension of features more."""

    def scores(self, features: Tensor) -> Tensor:
        """Return the scores of all symbols ``(·, V)``."""

    def steps(
        self, x: Tensor, at: Any, step: int, lengths: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Take steps whose inputs are known, in one call of the layer.

        Args:
            x: embedded symbols ``(T, B, ·)``.
            at: states of the rows before the first step.
            step: index of the first step.
            lengths: steps of each row ``(B,)``, if not all take T.

        Returns:
            Features ``(T, B, H)``, and the states of the rows after their last step.
        """

    def rows(self, at: Any, kept: Tensor) -> Any:
        """Select the states of some of the rows."""


class Feeding(NamedTuple):
    """The symbols that are fed at each step.

    Attributes:
        truth: symbols of the reference ``(T, B)``, shifted by one step behind a start symbol.
        own: True where the network's choice after the previous step is fed instead ``(T + 1, B)``;
            the last choice is made, but not fed.
        lengths: most steps of each row ``(B,)``, T or fewer.
        choose: chooses symbols by their scores.
        stops: whether a row ends where it chooses the end symbol.
    """

    truth: Tensor
    own: Tensor
    lengths: Tensor
    choose: Choose
    stops: bool


class Written(NamedTuple):
    """The result of a run, over the N frames of all rows.

    Attributes:
        features: inputs of the softmax ``(N, H)``.
        steps: step of each frame ``(N,)``.
        rows: row of each frame ``(N,)``.
        chosen: symbols that the network chose after each step ``(T, B)``, the end symbol where it
            made no choice.
        at: states of the rows that took the last step.
    """

    features: Tensor
    steps: Tensor
    rows: Tensor
    chosen: Tensor
    at: Any

    def of(self, symbols: Tensor) -> Tensor:
        """Pick the frames' symbols ``(N,)`` out of symbols ``(T, B)``."""
        return symbols[self.steps, self.rows]


def most_probable(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Choose the symbol with the highest score."""
    symbols = scores.argmax(1, keepdim=True)
    return symbols, torch.ones_like(symbols, dtype=scores.dtype)


def draw(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Draw a symbol from the softmax of the scores."""
    # cumulative sums in half precision would lose improbable symbols
    wide = torch.promote_types(scores.dtype, torch.float32)
    # multinomial would draw a number for every symbol
    sums = scores.detach().softmax(1, dtype=wide).cumsum(1)
    symbols = torch.searchsorted(sums, torch.rand_like(sums[:, :1]) * sums[:, -1:], right=True)
    symbols = symbols.clamp(max=scores.size(1) - 1)
    return symbols, torch.ones_like(symbols, dtype=scores.dtype)


def draw_at(scores: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """Draw symbols ``(R,)`` by scores ``(R, V)`` over a temperature; 0 takes the best symbol."""
    if temperature == 0:
        return scores.argmax(1)
    # subtracting the highest score prevents overflow at low temperatures
    scaled = (scores - scores.amax(1, keepdim=True)).double() / temperature
    return scaled.softmax(1).multinomial(1, generator=generator).squeeze(1)


def write(network: Network, at: Any, feeding: Feeding) -> Written:
    """Run a network symbol by symbol: the one loop of all ways to train, and of decoding.

    Args:
        network: the network.
        at: states of the rows before the first symbol.
        feeding: the symbols to feed.
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
        choosing, going_on = own[t, rows], lengths[rows] > t
        choice = choose(network.scores(features[-1, choosing])) if choosing.any() else None
        if choice is not None:
            chosen[t - 1, rows[choosing]] = choice[0][:, 0]
            if stops:
                going_on[choosing] &= choice[0][:, 0] != END
        if not going_on.any():
            break
        symbols, weights = _mixture(truth[t, rows], choosing, choice)
        if not going_on.all():
            # rows that have ended are dropped and cost nothing more
            rows, at = rows[going_on], network.rows(at, going_on)
            symbols, weights = symbols[going_on], weights[going_on]
        fed = symbols, weights
    features, steps, of = (torch.cat(parts) for parts in zip(*frames, strict=True))
    return Written(features, steps, of, chosen, at)


def _mixture(
    truth: Tensor, choosing: Tensor | None = None, choice: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Return K symbols to feed to each row, and their weights: a choice, or the truth alone."""
    symbols = truth.unsqueeze(1)
    if choosing is None or choice is None:
        return symbols, torch.ones_like(symbols)
    symbols = symbols.repeat(1, choice[0].size(1))
    weights = torch.zeros_like(symbols, dtype=choice[1].dtype)
    weights[:, 0] = 1
    symbols[choosing], weights[choosing] = choice
    return symbols, weights


def _known_steps(own: Tensor, left: Tensor) -> int:
    """Count the steps up to the next choice, or up to the end of all rows."""
    longest = int(left.max())
    choices = own[:longest].any(1).nonzero()
    return int(choices[0]) + 1 if len(choices) else longest


def writing_freely(rows: int, limit: int, device: torch.device) -> Feeding:
    """Feed each row its most probable symbol, up to the end symbol or the limit."""
    own = torch.ones(limit + 1, rows, dtype=torch.bool, device=device)
    own[0] = False
    truth = torch.full((limit, rows), END, device=device)
    lengths = torch.full((rows,), limit, device=device)
    return Feeding(truth, own, lengths, most_probable, stops=True)
