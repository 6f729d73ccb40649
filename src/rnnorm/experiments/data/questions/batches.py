"""Minibatches of questions, in an order that can be taken up again anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rnnorm.experiments.data.questions.numbered import NumberedQuestion, Numbers
from rnnorm.experiments.data.resumable import WholeMinibatches

#: in place of a candidate, where a question has fewer than another
NO_CANDIDATE = -1


class ClozeBatch(NamedTuple):
    """Right-padded questions.

    Attributes:
        x: documents ``(T, B)``.
        lengths: words of each document ``(B,)``.
        query: queries ``(Q, B)``.
        query_lengths: words of each query ``(B,)``.
        candidates: numbers of the words that may be the answer ``(C, B)``, or ``NO_CANDIDATE``.
        answers: the answer's place among the candidates ``(B,)``, -1 if it is not there.
    """

    x: Tensor
    lengths: Tensor
    query: Tensor
    query_lengths: Tensor
    candidates: Tensor
    answers: Tensor

    def to(self, device: torch.device | str) -> ClozeBatch:
        """The same on another device."""
        return ClozeBatch(*(part.to(device) for part in self))


class QuestionBatches(WholeMinibatches[ClozeBatch]):
    """Questions drawn at random, with their placeholders shuffled anew in each epoch.

    Args:
        questions: one or more.
        batch_size: rows of a minibatch.
        placeholder: number of the first placeholder.
        seed: seed of order and shuffles, or None for always the same ones, with nothing left out.
    """

    def __init__(
        self,
        questions: Sequence[NumberedQuestion],
        batch_size: int,
        placeholder: int,
        seed: int | None = None,
    ) -> None:
        super().__init__(len(questions), batch_size, seed)
        self.questions = questions
        self._placeholder = placeholder

    def batch(self, number: int, drawn: list[NDArray[np.int64]]) -> ClozeBatch:
        """A minibatch of this order."""
        rows = [self._shuffled(i) for i in drawn[number].tolist()]
        document, query, candidates, _, _ = zip(*rows, strict=True)
        return ClozeBatch(
            _padded(document),
            torch.tensor([len(row) for row in document]),
            _padded(query),
            torch.tensor([len(row) for row in query]),
            # one place at least: no document of a minibatch may have a candidate
            _padded([*candidates, np.zeros(1, np.int32)], NO_CANDIDATE)[:, :-1],
            torch.tensor([row.answer for row in rows]),
        )

    def _shuffled(self, index: int) -> NumberedQuestion:
        """A question with other numbers for its placeholders, in this epoch."""
        question = self.questions[index]
        if question.placeholders < 2:
            return question
        # evaluation has shuffles, too, always the same ones, whatever its minibatches are
        key = (0, 0, index) if self.seed is None else (self.seed, self.epoch + 1, index)
        random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(key)))
        order = random.permutation(question.placeholders).astype(np.int32) + self._placeholder

        def renamed(numbers: Numbers) -> Numbers:
            place = numbers - self._placeholder
            return np.where(place < 0, numbers, order[np.maximum(place, 0)])

        document, query, candidates = map(renamed, question[:3])
        return question._replace(document=document, query=query, candidates=candidates)


def _padded(rows: Iterable[Numbers], value: int = 0) -> Tensor:
    return pad_sequence([torch.from_numpy(row).long() for row in rows], padding_value=value)
