"""The dtypes that torch.nn returns under autocast."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from rnnorm.tracing import constant


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype of products in the current context, None without autocast."""
    kind = device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return None


def output_dtype(
    torch_class: Callable[..., nn.Module], x: Tensor, weight: Tensor, ragged: bool
) -> torch.dtype:
    """The dtype of the output and the states of torch.nn's class in the current context.

    Under autocast it differs between classes, devices, versions and grad modes, and for
    ragged input, so torch is asked. Where torch cannot run, it is the dtype of the products.

    Args:
        torch_class: torch.nn's class.
        x: the input.
        weight: one of the layer's weights.
        ragged: whether the rows have different lengths.

    Raises:
        RuntimeError: torch.nn's own, where float64 is mixed with another dtype.
    """
    products = autocast_dtype(x.device)
    if products is None:
        return x.dtype
    grad = torch.is_grad_enabled()
    return _constant(torch_class, x.device, x.dtype, weight.dtype, ragged, products, grad)


@constant
def _constant(*question: Any) -> torch.dtype:
    return _ask(*question)


@cache
def _ask(
    torch_class: Callable[..., nn.Module],
    device: torch.device,
    dtype: torch.dtype,
    weight_dtype: torch.dtype,
    ragged: bool,
    products: torch.dtype,
    grad: bool,
) -> torch.dtype:
    frame = torch.zeros(1, 1, device=device, dtype=dtype)
    # built on meta, so that no random numbers are drawn
    layer = torch_class(1, 1, device="meta", dtype=weight_dtype).to_empty(device=device)
    try:
        with torch.set_grad_enabled(grad):
            answer = layer(pack_sequence([frame.expand(2, 1), frame]) if ragged else frame)
    except RuntimeError:
        # a processor for which torch has no kernel of this dtype; float64 no kernel mixes
        if torch.float64 in (dtype, weight_dtype):
            raise
        return products
    while not isinstance(answer, torch.Tensor):
        answer = answer[0]
    return answer.dtype
