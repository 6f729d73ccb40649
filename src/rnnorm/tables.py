"""Tables of numbers that are known on the host, where a GPU reads them."""

from __future__ import annotations

import torch
from torch import Tensor


def moved(table: Tensor, device: torch.device) -> Tensor:
    """A table of the CPU on a device, which does not wait for what was launched there before."""
    if device.type != "cuda" or torch.compiler.is_compiling():
        return table.to(device)
    # a graph would read that memory again when it holds something else: refused by the former copy
    if torch.cuda.is_current_stream_capturing():
        return table.to(device)
    return table.pin_memory().to(device, non_blocking=True)
