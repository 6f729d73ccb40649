"""How much memory a training step takes, and keeps from forward to backward."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence


def kept_bytes(layer: nn.RNNBase, x: Tensor) -> int:
    """Bytes of resident memory that a call of a layer adds and backward needs (Linux alone).

    What is reserved and never touched does not count; the output and what malloc or the kernels
    keep for the next call do. Measure each layer in a process of its own.

    Args:
        layer: of ours or of torch.nn.
        x: its input, dense.

    Raises:
        OSError: there is no ``/proc``.
    """
    # threads and libraries are loaded before
    layer(x[:1])
    before = _resident("VmRSS")
    result = layer(x)
    after = _resident("VmRSS")
    del result
    return after - before


def peak_bytes(layer: nn.RNNBase, x: Tensor | PackedSequence) -> int:
    """Bytes by which a training step raises the memory of this process at most (Linux alone).

    That is what it needs beside weights and input, gradients included. What malloc keeps from an
    earlier step does not count: measure each layer in a process of its own.

    Args:
        layer: of ours or of torch.nn.
        x: its input.

    Raises:
        OSError: there is no ``/proc``.
    """
    # sets the peak back to what there is now
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    output = layer(x)[0]
    torch.autograd.backward((output.data if isinstance(output, PackedSequence) else output).sum())
    return _resident("VmHWM") - before


def _resident(name: str) -> int:
    """Memory of this process in bytes, now (``VmRSS``) or at its peak (``VmHWM``)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))
