"""Connectionist temporal classification (Graves et al. 2006): loss and decoding."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.functional import ctc_loss

from rnnorm.experiments.console import check_at_least

#: number of the blank
BLANK = 0


def summed_ctc(scores: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor) -> Tensor:
    """Sum the negative log-likelihood of the targets, in nats, over the rows that have targets.

    Args:
        scores: scores of the symbols ``(T, B, C)``, the blank first.
        lengths: steps of each row ``(B,)``.
        targets: symbols ``(B, S)``.
        target_lengths: symbols of each row ``(B,)``; a row without symbols is left out.
    """
    has = target_lengths > 0
    if not has.any():
        return scores.sum() * 0
    # torch has no CTC loss in half precision
    wide = torch.promote_types(scores.dtype, torch.float32)
    return ctc_loss(
        scores[:, has].log_softmax(2, dtype=wide),
        targets[has],
        lengths[has],
        target_lengths[has],
        blank=BLANK,
        reduction="sum",
    )


def read_off(scores: Tensor, lengths: Tensor, beam: int = 1) -> list[list[int]]:
    """Decode the symbols of each row by :func:`best_path` if ``beam`` is 1, or :func:`best_prefix`.

    Args:
        scores: scores of the symbols ``(T, B, C)``, the blank first.
        lengths: steps of each row ``(B,)``; the padding is ignored.
        beam: number of prefixes that are kept.

    Raises:
        ValueError: if ``beam < 1``.
    """
    check_at_least(1, beam=beam)
    if beam == 1:
        paths = scores.argmax(2).T.tolist()
        return [best_path(row[:n]) for row, n in zip(paths, lengths.tolist(), strict=True)]
    rows = scores.detach().cpu().double().log_softmax(2).transpose(0, 1).tolist()
    return [best_prefix(row[:n], beam) for row, n in zip(rows, lengths.tolist(), strict=True)]


def best_path(path: Sequence[int]) -> list[int]:
    """Collapse a path to its symbols: merge repetitions, then drop blanks."""
    return [symbol for symbol, _ in groupby(path) if symbol != BLANK]


def best_prefix(log_probabilities: Sequence[Sequence[float]], beam: int) -> list[int]:
    """Find the symbols whose paths have the largest total probability (Hannun et al. 2014).

    The beam keeps prefixes, each with whether its paths end with a blank. So a beam of 1 follows
    the best path, and an unlimited beam sums over all paths.

    Args:
        log_probabilities: log-probabilities of the symbols at each step, the blank first.
        beam: number of prefixes that are kept at each step.
    """
    kept: dict[tuple[tuple[int, ...], bool], float] = {((), True): 0.0}
    for step in log_probabilities:
        grown: dict[tuple[tuple[int, ...], bool], float] = {}
        for (prefix, blank), score in kept.items():
            for symbol, value in enumerate(step):
                if symbol == BLANK:
                    end = prefix, True
                elif not blank and prefix[-1] == symbol:
                    end = prefix, False
                else:
                    end = (*prefix, symbol), False
                grown[end] = _add(grown.get(end, -math.inf), score + value)
        kept = dict(heapq.nlargest(beam, grown.items(), key=lambda item: item[1]))
    whole: dict[tuple[int, ...], float] = {}
    for (prefix, _), score in kept.items():
        whole[prefix] = _add(whole.get(prefix, -math.inf), score)
    best, _ = max(whole.items(), key=lambda item: item[1])
    return list(best)


def _add(a: float, b: float) -> float:
    """Return log(exp(a) + exp(b))."""
    low, high = sorted((a, b))
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
