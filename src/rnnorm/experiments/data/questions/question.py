"""A cloze question: a text, a query with a blank, and the word that belongs there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rnnorm.experiments.files import BrokenFileError

#: replaces the missing word of a query
BLANK = "XXXXX"


class Question(NamedTuple):
    """A question, in words.

    Attributes:
        sentences: the document's sentences, each a list of words.
        query: the query's words.
        answer: the word that is missing.
        source: file and line, for error messages.
        story: number of the text that the question is about.
    """

    sentences: Sequence[Sequence[str]]
    query: Sequence[str]
    answer: str
    source: str
    story: int = 0

    @property
    def document(self) -> list[str]:
        """Return the document's words."""
        return [word for sentence in self.sentences for word in sentence]


def check_question(question: Question) -> Question:
    """Refuse a question with an empty part.

    Raises:
        BrokenFileError: if its document, its query or its answer is empty.
    """
    parts = {"document": any(question.sentences), "query": question.query}
    for name, part in {**parts, "answer": question.answer}.items():
        if not part:
            raise BrokenFileError(f"{question.source}: the {name} is empty")
    return question


def is_word(word: str) -> bool:
    """Tell whether a token is a word, not punctuation."""
    return any(character.isalnum() for character in word)


def most_relevant(question: Question, sentences: int) -> Question:
    """Cut the document to the sentences that share the most words with the query.

    Distinct words are counted, punctuation is not. Among equals the first sentences are kept. The
    order stays.

    Args:
        question: the question.
        sentences: how many sentences to keep.
    """
    query = {word for word in question.query if is_word(word)}
    shared = [-len(query.intersection(sentence)) for sentence in question.sentences]
    best = sorted(range(len(shared)), key=shared.__getitem__)[:sentences]
    return question._replace(sentences=[question.sentences[i] for i in sorted(best)])


def with_blank(text: str) -> list[str]:
    """Split a text into words, even where no space separates the blank from a word."""
    return text.replace(BLANK, f" {BLANK} ").split()


def same_stories(questions: Iterable[Question], words: int = 10) -> list[Question]:
    """Give questions about the same text the same ``story``.

    Two texts are the same if they have a sentence in common.

    Args:
        questions: in any order, which is kept.
        words: shorter sentences are not compared.
    """
    questions = list(questions)
    parents = list(range(len(questions)))

    def root(i: int) -> int:
        while parents[i] != i:
            parents[i] = i = parents[parents[i]]
        return i

    seen: dict[tuple[str, ...], int] = {}
    for i, question in enumerate(questions):
        for sentence in question.sentences:
            if len(sentence) >= words:
                parents[root(i)] = root(seen.setdefault(tuple(sentence), i))
    return [question._replace(story=root(i)) for i, question in enumerate(questions)]
