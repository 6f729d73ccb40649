"""The matrix product of the CPU kernels, and a core's multiply-adds, for benchmarks."""

from __future__ import annotations

import torch
from torch import Tensor

from rnnorm.kernels.cpu.library import call

#: rows of a weight that are packed together
PANEL = 64


def pack(weight: Tensor) -> Tensor:
    """Pack a weight in the layout that ``product`` reads.

    Args:
        weight: ``(64 panels, K)`` float32, contiguous.

    Returns:
        ``(panels, 64 K)``, in the order of this processor's build.

    Raises:
        ValueError: if the weight has another shape, type or layout.
    """
    _check("weight", weight)
    if weight.size(0) % PANEL:
        raise ValueError(f"weight must have a multiple of {PANEL} rows, got {weight.size(0)}")
    panels, K = weight.size(0) // PANEL, weight.size(1)
    packed = weight.new_empty(panels, PANEL * K)
    call("rnnorm_pack", weight.data_ptr(), K, panels, packed.data_ptr())
    return packed


def product(a: Tensor, packed: Tensor) -> Tensor:
    """Compute ``a @ weight.T`` on one thread, panel after panel.

    Args:
        a: ``(n, K)`` float32, contiguous.
        packed: the weight, packed by ``pack``.

    Returns:
        ``(panels, n, 64)``.

    Raises:
        ValueError: if a tensor has another shape, type or layout.
    """
    _check("a", a)
    _check("packed", packed)
    (n, K), panels = a.shape, packed.size(0)
    if packed.size(1) != PANEL * K:
        raise ValueError(f"packed must have {PANEL * K} columns for {K} of a, got {packed.size(1)}")
    c = a.new_empty(panels, n, PANEL)
    call("rnnorm_product", a.data_ptr(), n, K, packed.data_ptr(), panels, c.data_ptr())
    return c


def multiply_adds(count: int) -> None:
    """Run ``count`` multiply-adds in registers of the build's width, on one thread."""
    call("rnnorm_multiply_adds", count)


def _check(name: str, tensor: Tensor) -> None:
    """Refuse a tensor unless it is a contiguous float32 matrix.

    Raises:
        ValueError: if the tensor has another shape, type or layout.
    """
    if tensor.dtype != torch.float32 or tensor.dim() != 2 or not tensor.is_contiguous():
        raise ValueError(
            f"{name} must be a contiguous float32 matrix, got {tuple(tensor.shape)} of "
            f"{tensor.dtype} with strides {tensor.stride()}"
        )
