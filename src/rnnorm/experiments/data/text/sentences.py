"""Minibatches of whole sentences, from the first symbol to the end symbol."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rnnorm.experiments.data.batches import WholeMinibatches
from rnnorm.experiments.data.text.corpora import Text
from rnnorm.experiments.data.text.windows import PADDING, Window


def split_sentences(text: Text, end: int | None) -> list[Tensor]:
    """Split a text into sentences of symbols ``(N,)``, each with its end symbol.

    Empty lines and symbols behind the last end symbol are left out.

    Args:
        text: the text.
        end: number of the end symbol, or None if the text has no end symbol.

    Raises:
        ValueError: if there is no sentence.
    """
    ends = torch.tensor([]) if end is None else (text.symbols == end).nonzero().flatten() + 1
    *lines, _ = text.symbols.tensor_split(ends.long())
    sentences = [line for line in lines if len(line) > 1]
    if not sentences:
        raise ValueError(f"{text.source} has no sentence: no symbol with an end symbol behind it")
    return sentences


class Sentences(WholeMinibatches[Window]):
    """Right-padded minibatches of sentences, each of which starts from the initial state.

    The first symbol of a sentence is given, each later symbol is predicted.

    Args:
        sentences: symbols ``(N,)`` of each sentence, two or more.
        batch_size: rows of a minibatch.
        seed: seed of the order, or None for the order of the lengths, with the least padding and
            no sentence left out.
    """

    def __init__(
        self, sentences: Sequence[Tensor], batch_size: int, seed: int | None = None
    ) -> None:
        super().__init__(len(sentences), batch_size, seed)
        self.sentences = sorted(sentences, key=len) if seed is None else sentences

    def batch(self, number: int, drawn: list[NDArray[np.int64]]) -> Window:
        """Return a minibatch of the drawn order."""
        rows = [self.sentences[i].long() for i in drawn[number].tolist()]
        columns = pad_sequence(rows, padding_value=PADDING)
        return Window(
            # padding is never read, but must be the number of a symbol
            columns[:-1].clamp(min=0),
            columns[1:].contiguous(),
            fresh=True,
            kept=False,
            step=0,
            lengths=torch.tensor([len(row) - 1 for row in rows]),
        )


def fold(sentences: Sequence[Tensor]) -> list[Tensor]:
    """Concatenate the shortest and the longest sentence, and so on inwards (Glinskis 2017).

    Args:
        sentences: symbols ``(N,)`` of each sentence.

    Returns:
        Half as many sequences; if the number is odd, the middle sentence stays alone.
    """
    ordered = sorted(sentences, key=len)
    half = len(ordered) // 2
    middle = ordered[half : len(ordered) - half]
    return [torch.cat([ordered[i], ordered[-1 - i]]) for i in range(half)] + middle
