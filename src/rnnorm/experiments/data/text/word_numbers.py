"""Numbers for the frequent words of sentences that end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from rnnorm.experiments.data.text.vocabulary import Vocabulary

#: the number of the end of a sentence, which also stands before its first word
END = 0
#: the number of every word that is not in the vocabulary
UNKNOWN = 1
_WORDS = UNKNOWN + 1


class WordNumbers:
    """Numbers words, the end of a sentence and what is unknown.

    Args:
        vocabulary: the words, whose numbers follow those two.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    def __len__(self) -> int:
        """How many numbers there are."""
        return len(self.vocabulary) + _WORDS

    def numbers(self, words: Sequence[str]) -> Tensor:
        """Numbers ``(N,)`` of words, without an end."""
        return self.vocabulary.numbers(words, _WORDS)

    def sentence(self, numbers: Iterable[int]) -> str:
        """The words up to the end, with spaces between; an unknown one is ``<unk>``."""
        words = []
        for number in numbers:
            if number == END:
                break
            known = number >= _WORDS
            words.append(self.vocabulary.symbols[number - _WORDS] if known else "<unk>")
        return " ".join(words)
