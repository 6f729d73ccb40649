"""BLEU of numbered words, computed by sacrebleu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor
from torchmetrics import Metric

from rnnorm.experiments.data.text.vocabulary import END, UNKNOWN


def _bleu(effective_order: bool = False) -> BLEU:
    # force: words are tokenised already, so sacrebleu must not warn about separate full stops
    return BLEU(tokenize="none", force=True, effective_order=effective_order)


def signature() -> str:
    """Return sacrebleu's name of the measure."""
    bleu = _bleu()
    bleu.corpus_score(["a"], [["a"]])
    return str(bleu.get_signature())


def _words(numbers: Sequence[int], unknown: str) -> str:
    """Join the numbers up to the end as words of digits."""
    ended = numbers[: numbers.index(END)] if END in numbers else numbers
    return " ".join(unknown if number == UNKNOWN else str(number) for number in ended)


def _sentences(symbols: Tensor, unknown: str) -> list[str]:
    return [_words(row, unknown) for row in symbols.T.tolist()]


def _both(written: Tensor, reference: Tensor) -> tuple[list[str], list[str]]:
    # an unknown word is never right, since it may stand for any word
    return _sentences(written, "unknown"), _sentences(reference, "another")


def sentence_bleu(written: Tensor, reference: Tensor) -> Tensor:
    """Compute smoothed BLEU of each sentence, from 0 to 1, of the n-gram orders that fit into it.

    Args:
        written: numbers of words ``(T, B)``, each row up to its first end symbol.
        reference: numbers of the reference's words, of any length, in the same form.
    """
    bleu = _bleu(effective_order=True)
    pairs = zip(*_both(written, reference), strict=True)
    scores = [bleu.sentence_score(ours, [theirs]).score / 100 for ours, theirs in pairs]
    return torch.tensor(scores, device=written.device)


class CorpusBleu(Metric):
    """BLEU over all sentences of a part, from 0 to 100 (:func:`signature`).

    The value is that of the words themselves if the vocabulary has all of them; an unknown word is
    never right.
    """

    is_differentiable = False
    higher_is_better = True
    # without it forward would merge minibatches as processes are merged
    full_state_update = True

    counts: Tensor
    totals: Tensor
    lengths: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # matching n-grams, all n-grams, and the words of translations and references
        for name, size in (("counts", 4), ("totals", 4), ("lengths", 2)):
            zeros = torch.zeros(size, dtype=torch.int64)
            # max, not sum, since every process counts all rows
            self.add_state(name, default=zeros, dist_reduce_fx="max")

    def update(self, written: Tensor, reference: Tensor) -> None:
        """Count a minibatch.

        Args:
            written: numbers of words ``(T, B)``, each row up to its first end symbol.
            reference: numbers of the reference's words, of any length, in the same form.
        """
        ours, theirs = _both(written, reference)
        found = _bleu().corpus_score(ours, [theirs])
        self.counts += torch.tensor(found.counts, device=self.counts.device)
        self.totals += torch.tensor(found.totals, device=self.counts.device)
        self.lengths += torch.tensor([found.sys_len, found.ref_len], device=self.counts.device)

    def compute(self) -> Tensor:
        """Return the value over all minibatches so far."""
        ours, theirs = self.lengths.tolist()
        bleu = BLEU.compute_bleu(
            self.counts.tolist(), self.totals.tolist(), ours, theirs, smooth_method="exp"
        )
        return torch.tensor(bleu.score)
