"""The symbols of a text, their numbers, and the base of data that keeps them in checkpoints."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rnnorm.experiments.data.loaded_data import LoadedData
from rnnorm.experiments.data.text_file import line_and_column
from rnnorm.experiments.files import BrokenFileError

_CODE_POINTS = 0x110000


class Vocabulary:
    """The symbols of a text, numbered in sorted order.

    Args:
        symbols: characters or words, in any order and number.

    Attributes:
        symbols: the distinct symbols, sorted; a symbol's number is its index.
    """

    def __init__(self, symbols: Iterable[str]) -> None:
        self.symbols = tuple(sorted(set(symbols)))
        self._numbers = {symbol: i for i, symbol in enumerate(self.symbols)}

    @classmethod
    def frequent(cls, texts: Iterable[Sequence[str]], most: int) -> Vocabulary:
        """Make a vocabulary of the most frequent words of some texts; on ties the first words."""
        counts = Counter(word for text in texts for word in text)
        return cls(word for word, _ in counts.most_common(most))

    def __len__(self) -> int:
        """Return how many symbols there are."""
        return len(self.symbols)

    def number(self, symbol: str) -> int | None:
        """Return the number of a symbol, or None if the vocabulary lacks it."""
        return self._numbers.get(symbol)

    def numbers(self, words: Sequence[str], first: int) -> Tensor:
        """Return the numbers ``(N,)`` of words, from ``first`` on; unknown words get ``first - 1``.

        A text without words counts as one unknown word.
        """
        found = (self.number(word) for word in words)
        known = [first - 1 if number is None else first + number for number in found]
        return torch.tensor(known or [first - 1])

    def characters(self, characters: str, text: str, path: object) -> Tensor:
        """Return the numbers ``(N,)`` of characters, in one byte each if there are few symbols.

        Args:
            characters: the characters.
            text: the whole text of the file, for the error.
            path: the file, for the error.

        Raises:
            BrokenFileError: if a character is not in the vocabulary.
        """
        small = len(self) < 256
        unknown = 255 if small else -1
        table = np.full(_CODE_POINTS, unknown, np.uint8 if small else np.int32)
        table[[ord(symbol) for symbol in self.symbols]] = np.arange(len(self))
        # one byte a character where that is enough: text8 has a hundred million characters
        narrow = characters.isascii()
        code = characters.encode("ascii" if narrow else "utf-32-le")
        numbers = table[np.frombuffer(code, np.uint8 if narrow else np.uint32)]
        missing = numbers == unknown
        if missing.any():
            character = characters[int(missing.argmax())]
            at = line_and_column(text, text.find(character))
            raise BrokenFileError(
                f"{path} has the character {character!r} in {at}, which the training text does not "
                "have"
            )
        return torch.from_numpy(numbers)

    def words(self, words: Sequence[str], text: str, path: object) -> Tensor:
        """Return the numbers ``(N,)`` of words.

        Args:
            words: the words.
            text: the whole text of the file, for the error.
            path: the file, for the error.

        Raises:
            BrokenFileError: if a word is not in the vocabulary.
        """
        try:
            return torch.tensor([self._numbers[word] for word in words], dtype=torch.int32)
        except KeyError as error:
            word = error.args[0]
            found = re.search(rf"(?<!\S){re.escape(word)}(?!\S)", text)
            at = line_and_column(text, found.start() if found else 0)
            raise BrokenFileError(
                f"{path} has the word {word[:40]!r} in {at}, which the training text does not have"
            ) from None

    def check_same(self, trained: Sequence[str], source: str) -> None:
        """Refuse this vocabulary if a checkpoint was trained with another one.

        Args:
            trained: the symbols of the checkpoint.
            source: the file of this vocabulary.

        Raises:
            ValueError: if the vocabularies differ.
        """
        if tuple(trained) == self.symbols:
            return
        new = sorted(set(self.symbols) - set(trained))
        gone = sorted(set(trained) - set(self.symbols))
        parts = [
            f"{len(symbols)} that the {where} does not have, such as {symbols[0]!r}"
            for symbols, where in ((new, "checkpoint"), (gone, "file"))
            if symbols
        ]
        raise ValueError(
            f"the vocabulary of {source} ({len(self)} symbols) is not that of the checkpoint "
            f"({len(trained)} symbols): there are {' and '.join(parts)}"
        )


#: the number of a sentence's end, which is also the input before its first word
END = 0
#: the number of every word that is not in the vocabulary
UNKNOWN = 1
_WORDS = UNKNOWN + 1


class WordNumbers:
    """Numbers of the end of a sentence, of the unknown word, and of the words.

    Args:
        vocabulary: the words, whose numbers follow ``END`` and ``UNKNOWN``.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    def __len__(self) -> int:
        """Return how many numbers there are."""
        return len(self.vocabulary) + _WORDS

    def numbers(self, words: Sequence[str]) -> Tensor:
        """Return the numbers ``(N,)`` of words, without an end."""
        return self.vocabulary.numbers(words, _WORDS)

    def sentence(self, numbers: Iterable[int]) -> str:
        """Join the words up to the end with spaces; an unknown word is ``<unk>``."""
        words = []
        for number in numbers:
            if number == END:
                break
            known = number >= _WORDS
            words.append(self.vocabulary.symbols[number - _WORDS] if known else "<unk>")
        return " ".join(words)


class KeepsVocabulary(LoadedData):
    """Data with a vocabulary that checkpoints keep; one with another vocabulary is refused.

    Attributes:
        vocabulary: the symbols, once the data are loaded.
        source: the source of the symbols, for the error.
    """

    vocabulary = Vocabulary(())
    source = ""

    def state_dict(self) -> dict[str, Any]:
        """Return the vocabulary, which a checkpoint keeps."""
        return {"vocabulary": list(self.vocabulary.symbols)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse a checkpoint with another vocabulary.

        Raises:
            ValueError: if the vocabularies differ.
        """
        if "vocabulary" in state_dict:
            self.vocabulary.check_same(state_dict["vocabulary"], self.source)
