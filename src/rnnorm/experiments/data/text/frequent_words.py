"""The words of short texts, and numbers for the frequent ones."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from rnnorm.experiments.data.text.vocabulary import Vocabulary

# a word, apostrophes within it, or signs that stand together, such as a smiley
_WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]+")
#: the number of every word that is not in the vocabulary
UNKNOWN = 0


def split_words(text: str) -> list[str]:
    """Words and signs of a text, in small letters, with ``&amp;`` and the like resolved."""
    return _WORD.findall(html.unescape(text).lower())


def frequent_words(texts: Iterable[Sequence[str]], most: int) -> Vocabulary:
    """The most frequent words of some texts; of equals those that come first."""
    counts = Counter(word for text in texts for word in text)
    return Vocabulary(word for word, _ in counts.most_common(most))


def numbers_of(words: Sequence[str], vocabulary: Vocabulary) -> Tensor:
    """Numbers ``(N,)`` of words, from 1 on, ``UNKNOWN`` for those that are not in the vocabulary.

    A text without a word is one unknown word.
    """
    numbers = (vocabulary.number(word) for word in words)
    known = [UNKNOWN if number is None else number + 1 for number in numbers]
    return torch.tensor(known or [UNKNOWN])
