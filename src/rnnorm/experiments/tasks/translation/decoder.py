"""Writes symbol after symbol with a source in view, whatever is fed: truth, choices, mixtures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from rnnorm.experiments.data.text.word_numbers import END
from rnnorm.experiments.models.luong_attention import LuongAttention, Memory

State = tuple[Tensor, ...]
#: from scores ``(R, V)`` to K symbols of each row and their weights, ``(R, K)`` each
Choose = Callable[[Tensor], tuple[Tensor, Tensor]]


class Feeding(NamedTuple):
    """What is fed at each step.

    Attributes:
        truth: symbols of the reference ``(T, B)``, one step late: the first is that of a beginning.
        own: where the decoder's choice after the step before is fed instead ``(T + 1, B)``; the
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
        chosen: symbols that the decoder chose after each step ``(T, B)``, the end symbol where it
            chose none.
    """

    features: Tensor
    steps: Tensor
    rows: Tensor
    chosen: Tensor

    def of(self, symbols: Tensor) -> Tensor:
        """Symbols ``(T, B)`` of the frames, ``(N,)``."""
        return symbols[self.steps, self.rows]


def most_probable(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The symbol with the highest score."""
    symbols = scores.argmax(1, keepdim=True)
    return symbols, torch.ones_like(symbols, dtype=scores.dtype)


class Decoder(nn.Module):
    """A recurrent layer that reads the symbol before and writes the next, with attention.

    The attention follows the recurrent layer and is no input of it, so that steps whose inputs are
    known beforehand are one call of the layer.

    Args:
        vocabulary_size: how many symbols there are.
        rnn: a layer of one direction, whose input is as wide as the embedding.
        memory_size: width of what is attended to.
        rate: dropout of the embedding and of the features, never of a recurrent connection.
    """

    def __init__(
        self, vocabulary_size: int, rnn: nn.RNNBase, memory_size: int, rate: float
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, rnn.input_size)
        self.rnn = rnn
        self.attention = LuongAttention(memory_size, rnn.hidden_size)
        self.classifier = nn.Linear(rnn.hidden_size, vocabulary_size)
        self.rate = rate

    def embed(self, symbols: Tensor) -> Tensor:
        """Inputs of the layer, of the shape of the symbols and as many features."""
        return dropout(self.embedding(symbols), self.rate, self.training)

    def scores(self, features: Tensor) -> Tensor:
        """Scores of all symbols."""
        scores: Tensor = self.classifier(dropout(features, self.rate, self.training))
        return scores

    def steps(
        self, x: Tensor, memory: Memory, state: State, step: int, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Take steps whose inputs are known, in one call of the layer.

        Args:
            x: embedded symbols ``(T, B, E)``.
            memory: of the same rows.
            state: states ``(1, B, H)``.
            step: index of the first.
            lengths: how many steps each row takes ``(B,)``, if not all take T.

        Returns:
            features ``(T, B, H)`` and the states after each row's last step.
        """
        hx: Any = state if len(state) > 1 else state[0]
        output, last = self.rnn(x, hx, lengths=lengths, step=step)
        return self.attention(output, memory), last if isinstance(last, tuple) else (last,)

    def forward(self, memory: Memory, state: State, feeding: Feeding) -> Written:
        """Write: the one loop of all ways to train, and of decoding.

        Args:
            memory: what there is to look at.
            state: states before the first symbol ``(1, B, H)``.
            feeding: what is fed.
        """
        truth, own, lengths, choose, stops = feeding
        rows, chosen = torch.arange(len(lengths), device=truth.device), torch.zeros_like(truth)
        frames: list[tuple[Tensor, Tensor, Tensor]] = []
        t, fed = 0, _mixture(truth[0])
        while len(rows):
            n = _known_steps(own[t + 1 :, rows], lengths[rows] - t)
            symbols, weights = fed
            x = (weights.unsqueeze(2) * self.embed(symbols)).sum(1).unsqueeze(0)
            if n > 1:
                x = torch.cat([x, self.embed(truth[t + 1 : t + n, rows])])
            left = (lengths[rows] - t).clamp(max=n)
            features, state = self.steps(x, memory, state, t, left if n > 1 else None)
            at, row = (torch.arange(n, device=rows.device).unsqueeze(1) < left).nonzero().T
            frames.append((features[at, row], at + t, rows[row]))
            t += n
            mine, going_on = own[t, rows], lengths[rows] > t
            choice = choose(self.scores(features[-1, mine])) if mine.any() else None
            if choice is not None:
                chosen[t - 1, rows[mine]] = choice[0][:, 0]
                if stops:
                    going_on[mine] &= choice[0][:, 0] != END
            if not going_on.any():
                break
            symbols, weights = _mixture(truth[t, rows], mine, choice)
            if not going_on.all():
                # a row that has ended costs nothing more
                rows, memory = rows[going_on], memory.of(going_on)
                state = tuple(each[:, going_on] for each in state)
                symbols, weights = symbols[going_on], weights[going_on]
            fed = symbols, weights
        features, steps, of = (torch.cat(parts) for parts in zip(*frames, strict=True))
        return Written(features, steps, of, chosen)


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
