"""A module's statistics, copied and put back, so that they can be updated in any mode."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


@torch.inference_mode(False)
def copy_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Copies of its own buffers, by name."""
    return {name: buffer.clone() for name, buffer in module.named_buffers(recurse=False)}


@torch.inference_mode(False)
def put_buffers(module: nn.Module, buffers: Mapping[str, Tensor], rows: int | None = None) -> None:
    """Gives it these buffers, or copies of their first ``rows``."""
    for name, buffer in buffers.items():
        setattr(module, name, buffer if rows is None else buffer[:rows].clone())
