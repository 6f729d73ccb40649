"""Numbers too small to be normal count as zeros in a training."""

from __future__ import annotations

import torch


def flush_subnormals() -> None:
    """Let torch's own kernels take subnormal numbers for zeros, as the fused ones do.

    Gradients that vanish consist of them, and some processors need a hundred cycles for each.
    Threads of torch inherit it when they are made: call it before torch has computed anything.
    Where the processor has no such mode, nothing changes.
    """
    torch.set_flush_denormal(True)
