"""The decoder of a translation model, which attends to the source."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.functional import dropout

from rnnorm.experiments.models.attention import LuongAttention, Memory
from rnnorm.experiments.models.recurrent_model import rows_of


class DecoderState(NamedTuple):
    """The decoder's memory and states before a step.

    Attributes:
        memory: the encoder's outputs.
        state: states of the layer, ``(1, B, H)`` each.
    """

    memory: Memory
    state: Any


class Decoder(nn.Module):
    """A recurrent layer with attention that reads the previous symbol and predicts the next.

    The attention follows the recurrent layer and is not an input of it, so that steps whose inputs
    are known beforehand are one call of the layer.

    Args:
        vocabulary_size: number of symbols.
        rnn: a layer of one direction, whose input is as wide as the embedding.
        memory_size: width of the encoder's outputs.
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
        """Return the layer's inputs: the symbols' shape with a dimension of features more."""
        return dropout(self.embedding(symbols), self.rate, self.training)

    def scores(self, features: Tensor) -> Tensor:
        """Compute the scores of all symbols."""
        scores: Tensor = self.classifier(dropout(features, self.rate, self.training))
        return scores

    def steps(
        self, x: Tensor, at: DecoderState, step: int, lengths: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]:
        """Take steps whose inputs are known, in one call of the layer.

        Args:
            x: embedded symbols ``(T, B, E)``.
            at: memory and states of the same rows.
            step: index of the first step.
            lengths: steps of each row ``(B,)``, if not all take T.

        Returns:
            Features ``(T, B, H)``, and memory and states after each row's last step.
        """
        memory, state = at
        output, state = self.rnn(x, state, lengths=lengths, step=step)
        return self.attention(output, memory), DecoderState(memory, state)

    def rows(self, at: DecoderState, kept: Tensor) -> DecoderState:
        """Select memory and states of some rows."""
        return DecoderState(at.memory.of(kept), rows_of(at.state, kept))
