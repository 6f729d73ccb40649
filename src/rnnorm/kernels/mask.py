"""What recurrent dropout drew for a layer at one of its places."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Mask(NamedTuple):
    """Numbers ``drawn * scale``: a byte each, until a kernel reads them.

    Args:
        drawn: ``(T, B, ·)`` bool, or broadcast to that.
        scale: of the true ones.
    """

    drawn: Tensor
    scale: float = 1.0

    def numbers(self, dtype: torch.dtype) -> Tensor:
        """In a floating dtype, with the shape of ``drawn``."""
        return self.drawn.to(dtype) * self.scale
