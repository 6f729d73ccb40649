"""Questions encoded as numbers, and minibatches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rnnorm.experiments.data.batches import WholeMinibatches
from rnnorm.experiments.data.questions.question import Question
from rnnorm.experiments.data.text.vocabulary import Vocabulary

Numbers = NDArray[np.int32]
#: tells whether a word may be an answer
Possible = Callable[[str], bool]


class NumberedQuestion(NamedTuple):
    """A question in numbers.

    Attributes:
        document: ``(N,)``.
        query: ``(M,)``.
        candidates: the distinct numbers in the document that may be the answer.
        answer: the answer's index among the candidates, -1 if the document lacks it.
        placeholders: how many placeholders document and query have, numbered from the first on.
    """

    document: Numbers
    query: Numbers
    candidates: Numbers
    answer: int
    placeholders: int


class Raw(NamedTuple):
    """A question whose words are numbered in the order of their first occurrence."""

    document: Numbers
    query: Numbers
    answer: int
    source: str


def read_raw(questions: Iterable[Question], words: dict[str, int]) -> list[Raw]:
    """Encode words in the order of their first occurrence, so that no text stays in memory.

    Args:
        questions: the questions, read one by one.
        words: numbers of the words so far; new words are added.
    """

    def numbers(text: Iterable[str]) -> Numbers:
        return np.array([words.setdefault(word, len(words)) for word in text], np.int32)

    return [
        Raw(numbers(q.document), numbers(q.query), words.setdefault(q.answer, len(words)), q.source)
        for q in questions
    ]


class Numbering:
    """Numbers of words, of the unknown word, and of placeholders, in this order.

    The most frequent words of the training questions form the vocabulary. Any other word that may
    be an answer gets a placeholder, one for all its occurrences in a text and its query, until
    ``placeholders`` are used up. All other words are the unknown word.

    Args:
        words: all words, with their numbers in ``train``.
        train: the training questions.
        size: most words of the vocabulary; None for all words of the training questions.
        placeholders: the number of placeholders.
        possible: tells whether a word may be an answer.
        anonymous: whether possible answers are kept out of the vocabulary (CNN's entities).

    Attributes:
        vocabulary: the words.
        unknown: number of the unknown word.
        placeholders: the number of placeholders.
    """

    def __init__(
        self,
        words: dict[str, int],
        train: Iterable[Raw],
        size: int | None,
        placeholders: int,
        possible: Possible,
        anonymous: bool,
    ) -> None:
        names = list(words)
        counts = np.zeros(len(names), np.int64)
        for numbers in chain.from_iterable((q.document, q.query) for q in train):
            np.add.at(counts, numbers, 1)
        may = np.array([possible(name) for name in names])
        known = counts > 0
        if anonymous:
            known &= ~may
        order = sorted(np.flatnonzero(known).tolist(), key=lambda i: (-counts[i], names[i]))
        self.vocabulary = Vocabulary(names[i] for i in order[:size])
        self.unknown, self.placeholders = len(self.vocabulary), placeholders
        self._table = np.where(may, -1, self.unknown).astype(np.int32)
        for number, word in enumerate(self.vocabulary.symbols):
            self._table[words[word]] = number
        candidates = [not anonymous and possible(word) for word in self.vocabulary.symbols]
        self._candidates = np.array([*candidates, False, *[True] * placeholders])

    def __len__(self) -> int:
        """Return how many numbers there are."""
        return self.unknown + 1 + self.placeholders

    def name(self, number: int) -> str:
        """Return the text that a number is shown as."""
        if number < self.unknown:
            return self.vocabulary.symbols[number]
        return "<unknown>" if number == self.unknown else f"@{number - self.unknown - 1}"

    def question(self, raw: Raw) -> NumberedQuestion:
        """Encode a question in these numbers."""
        both = np.concatenate([raw.document, raw.query])
        numbers = self._table[both]
        nameless = both[numbers < 0]
        found, first = np.unique(nameless, return_index=True)
        found = found[np.argsort(first)][: self.placeholders]
        number_of = {int(word): self.unknown + 1 + i for i, word in enumerate(found)}
        numbers[numbers < 0] = [number_of.get(int(word), self.unknown) for word in nameless]
        document, query = np.split(numbers, [len(raw.document)])
        candidates = np.unique(document)
        candidates = candidates[self._candidates[candidates]]
        answer: Any = self._table[raw.answer]
        answer = number_of.get(raw.answer, self.unknown) if answer < 0 else int(answer)
        at = np.flatnonzero(candidates == answer)
        return NumberedQuestion(
            document, query, candidates, int(at[0]) if len(at) else -1, len(number_of)
        )


#: pads the candidates of a question that has fewer than others
NO_CANDIDATE = -1


class ClozeBatch(NamedTuple):
    """Right-padded questions.

    Attributes:
        x: documents ``(T, B)``.
        lengths: words of each document ``(B,)``.
        query: queries ``(Q, B)``.
        query_lengths: words of each query ``(B,)``.
        candidates: numbers of the words that may be the answer ``(C, B)``, or ``NO_CANDIDATE``.
        answers: the answer's index among the candidates ``(B,)``, -1 if the document lacks it.
    """

    x: Tensor
    lengths: Tensor
    query: Tensor
    query_lengths: Tensor
    candidates: Tensor
    answers: Tensor


class QuestionBatches(WholeMinibatches[ClozeBatch]):
    """Minibatches of random questions, whose placeholders are shuffled again in each epoch.

    Args:
        questions: one or more.
        batch_size: rows of a minibatch.
        placeholder: number of the first placeholder.
        seed: seed of order and shuffles, or None for fixed ones, with no question left out.
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
        """Return a minibatch of the drawn order."""
        rows = [self._shuffled(i) for i in drawn[number].tolist()]
        document, query, candidates, _, _ = zip(*rows, strict=True)
        return ClozeBatch(
            _padded(document),
            torch.tensor([len(row) for row in document]),
            _padded(query),
            torch.tensor([len(row) for row in query]),
            # an empty row is padded along, since all documents may lack candidates
            _padded([*candidates, np.zeros(1, np.int32)], NO_CANDIDATE)[:, :-1],
            torch.tensor([row.answer for row in rows]),
        )

    def _shuffled(self, index: int) -> NumberedQuestion:
        """Return a question with the numbers of its placeholders permuted for this epoch."""
        question = self.questions[index]
        if question.placeholders < 2:
            return question
        # evaluation shuffles too, by a fixed seed for each question
        key = (0, 0, index) if self.seed is None else (self.seed, self.epoch + 1, index)
        random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(key)))
        order = random.permutation(question.placeholders).astype(np.int32) + self._placeholder

        def renamed(numbers: Numbers) -> Numbers:
            position = numbers - self._placeholder
            return np.where(position < 0, numbers, order[np.maximum(position, 0)])

        document, query, candidates = map(renamed, question[:3])
        return question._replace(document=document, query=query, candidates=candidates)


def _padded(rows: Iterable[Numbers], value: int = 0) -> Tensor:
    return pad_sequence([torch.from_numpy(row).long() for row in rows], padding_value=value)
