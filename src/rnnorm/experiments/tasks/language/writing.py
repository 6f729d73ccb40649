"""Texts that a language model writes, symbol by symbol."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rnnorm.experiments.console import check_at_least
from rnnorm.experiments.data.text.corpora import ENDS
from rnnorm.experiments.data.text.vocabulary import Vocabulary
from rnnorm.experiments.models.feeding import draw_at

if TYPE_CHECKING:
    from rnnorm.experiments.tasks.language.model import LanguageModel


def texts(
    model: LanguageModel,
    vocabulary: Vocabulary,
    dataset: str,
    beginnings: Iterable[Tensor],
    *,
    count: int = 1,
    temperature: float = 1.0,
    seed: int = 1,
    max_length: int = 400,
) -> list[str]:
    """Continue beginnings up to the end of the sentence or line, and return readable texts.

    Args:
        model: the model, which is set to evaluation.
        vocabulary: the symbols that the model knows.
        dataset: name of the text.
        beginnings: numbers of symbols ``(N,)``, one or more.
        count: number of texts for each beginning.
        temperature: what the scores are divided by; 0 for the most probable symbol.
        seed: seed of the draws.
        max_length: how many symbols are drawn at most.
    """
    end = vocabulary.number(ENDS[dataset]) if dataset in ENDS else None
    generator = torch.Generator().manual_seed(seed)
    written = []
    for beginning in beginnings:
        for _ in range(count):
            symbols = continuation(model, beginning, end, temperature, max_length, generator)
            ended = symbols[:-1] if symbols[-1] == end else symbols
            written.append(_readable([*beginning.tolist(), *ended], vocabulary, dataset))
    return written


@torch.no_grad()
def continuation(
    model: LanguageModel,
    beginning: Tensor,
    end: int | None,
    temperature: float,
    max_length: int,
    generator: torch.Generator,
) -> list[int]:
    """Draw symbols one by one, carrying the state and the time step of the statistics.

    Args:
        model: the model, which is set to evaluation.
        beginning: numbers of symbols ``(N,)``, one or more.
        end: the symbol after which nothing is drawn.
        temperature: what the scores are divided by; 0 for the most probable symbol.
        max_length: how many symbols are drawn at most.
        generator: where the draws come from, on the CPU.

    Returns:
        The symbols after the beginning, ``end`` the last of them if it was drawn.

    Raises:
        ValueError: if ``temperature`` is not a number of at least 0.
    """
    check_at_least(0, temperature=temperature)
    model.eval()
    x, state, step = beginning.long().unsqueeze(1), None, 0
    written: list[int] = []
    while len(written) < max_length and (not written or written[-1] != end):
        scores, state = model(x.to(model.device), state, step)
        step += len(x)
        x = draw_at(scores[-1].cpu(), temperature, generator).unsqueeze(1)
        written.append(int(x))
    return written


def numbers(beginning: str, vocabulary: Vocabulary, dataset: str) -> Tensor:
    """Return the numbers of a beginning's symbols, ``(N,)``.

    Raises:
        ValueError: if the beginning is empty or not UTF-8, or has a symbol that the vocabulary does
            not have.
    """
    if not beginning.strip():
        raise ValueError(f"a beginning must have a symbol, got {beginning!r}")
    # how Python reads bytes of an argument that are not UTF-8
    if any("\ud800" <= symbol <= "\udfff" for symbol in beginning):
        raise ValueError(f"a beginning must be text in UTF-8, got {beginning!r}")
    where = f"the beginning {beginning!r}"
    if dataset == "ptb-word":
        return vocabulary.words(beginning.split(), beginning, where)
    text = beginning.replace(" ", "_") if dataset == "ptb-char" else beginning
    return vocabulary.characters(text, beginning, where)


def _readable(symbols: Sequence[int], vocabulary: Vocabulary, dataset: str) -> str:
    """Return symbols as readable text, with spaces between words."""
    found = [vocabulary.symbols[number] for number in symbols]
    if dataset == "ptb-word":
        return " ".join(found)
    text = "".join(found)
    return text.replace("_", " ") if dataset == "ptb-char" else text
