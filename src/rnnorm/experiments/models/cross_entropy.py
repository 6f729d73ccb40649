"""Cross-entropy of scores, in float32 at least: near 3 nats bfloat16 has steps of 1/64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def cross_entropy(scores: Tensor, targets: Tensor, **options: Any) -> Tensor:
    """:func:`torch.nn.functional.cross_entropy`, whose options it takes."""
    wide = torch.promote_types(scores.dtype, torch.float32)
    return functional.cross_entropy(scores.to(wide), targets, **options)
