"""Folded sentences: sequences of about the same length, each of a short and a long sentence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def fold(sentences: Sequence[Tensor]) -> list[Tensor]:
    """Concatenate the shortest and the longest sentence, and so on inwards (Glinskis 2017).

    Args:
        sentences: symbols ``(N,)`` each.

    Returns:
        Half as many sequences; of an odd number the middle one stays alone.
    """
    ordered = sorted(sentences, key=len)
    half = len(ordered) // 2
    middle = ordered[half : len(ordered) - half]
    return [torch.cat([ordered[i], ordered[-1 - i]]) for i in range(half)] + middle
