"""Which steps of right-padded rows are no padding."""

from __future__ import annotations

import torch
from torch import Tensor


def inside(lengths: Tensor, steps: int) -> Tensor:
    """Whether each step is one of its row ``(steps, B)``.

    Args:
        lengths: steps of each row ``(B,)``.
        steps: how many there are with the padding.
    """
    return torch.arange(steps, device=lengths.device).unsqueeze(1) < lengths
