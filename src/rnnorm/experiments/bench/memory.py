"""How much memory a training step keeps from forward to backward."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.utils.rnn import PackedSequence


def saved_bytes(layer: nn.RNNBase, x: Tensor) -> int:
    """Bytes that one call of a layer saves for backward.

    Each storage counts once, and whole; the layer's own parameters and buffers, and the input,
    do not. The output counts: backward reads it.

    Args:
        layer: of ours or of torch.nn.
        x: its input.
    """
    known = {t.untyped_storage().data_ptr() for t in (x, *layer.parameters(), *layer.buffers())}
    saved = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(count, lambda tensor: tensor):
        # alive until the count is done, so that no storage takes the address of another
        result = layer(x)
    del result
    return sum(saved.values())


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
