"""How much memory a training step keeps from forward to backward."""

from __future__ import annotations

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


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
