"""The dtypes that torch.nn returns under autocast."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype of products in the current context, None without autocast."""
    kind = device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return None


def output_dtype(
    rival: type[nn.Module], device: torch.device, dtype: torch.dtype, packed: bool
) -> torch.dtype:
    """The dtype of the output and the states of torch.nn's class in the current context.

    Under autocast it differs between classes, devices, versions and grad modes, and for packed
    input, so torch is asked.

    Args:
        rival: torch.nn's class.
        device: where the layer runs.
        dtype: of the input.
        packed: whether the input is a PackedSequence.
    """
    products = autocast_dtype(device)
    if products is None:
        return dtype
    return _ask(rival, device, dtype, packed, products, torch.is_grad_enabled())


@cache
def _ask(
    rival: type[nn.Module],
    device: torch.device,
    dtype: torch.dtype,
    packed: bool,
    products: torch.dtype,
    grad: bool,
) -> torch.dtype:
    x: Any = torch.zeros(1, 1, device=device, dtype=dtype)
    # built on meta, so that no random numbers are drawn
    layer = rival(1, 1, device="meta").to_empty(device=device)
    with torch.set_grad_enabled(grad):
        answer = layer(pack_sequence([x]) if packed else x)
    while not isinstance(answer, torch.Tensor):
        answer = answer[0]
    return answer.dtype
