"""Writes symbol after symbol with a source in view."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.functional import dropout

from rnnorm.experiments.models.attention import LuongAttention, Memory
from rnnorm.experiments.models.recurrent_model import rows_of


class Sight(NamedTuple):
    """What the decoder goes on from.

    Attributes:
        memory: what there is to look at.
        state: of the layer, ``(1, B, H)`` each.
    """

    memory: Memory
    state: Any


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
        self, x: Tensor, at: Sight, step: int, lengths: Tensor | None = None
    ) -> tuple[Tensor, Sight]:
        """Take steps whose inputs are known, in one call of the layer.

        Args:
            x: embedded symbols ``(T, B, E)``.
            at: memory and states of the same rows.
            step: index of the first.
            lengths: how many steps each row takes ``(B,)``, if not all take T.

        Returns:
            features ``(T, B, H)``, and memory and states after each row's last step.
        """
        memory, state = at
        output, state = self.rnn(x, state, lengths=lengths, step=step)
        return self.attention(output, memory), Sight(memory, state)

    def rows(self, at: Sight, kept: Tensor) -> Sight:
        """Memory and states of some rows."""
        return Sight(at.memory.of(kept), rows_of(at.state, kept))
