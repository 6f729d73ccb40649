"""Time the CPU kernels' matrix product as a share of a core's peak multiply-add rate."""

from __future__ import annotations

from functools import partial

import torch

from rnnorm.experiments.bench.layers import verify
from rnnorm.experiments.bench.record import Record
from rnnorm.experiments.bench.timing import interleave
from rnnorm.kernels.cpu.product import PANEL, multiply_adds, pack, product


def time_product(n: int, K: int, panels: int, seconds: float) -> Record:
    """Time a product ``(n, K) x (K, 64 panels)`` and as many multiply-adds in registers, in turn.

    Both run on one thread, and the product is compared with torch's before its time is taken.

    Args:
        n: number of rows in the minibatch.
        K: length of the sums, the number of hidden units.
        panels: number of panels of 64 columns, each an LSTM's 16 units with their gates.
        seconds: how long to measure.

    Returns:
        ``product`` and ``peak`` in GFLOP/s, and ``ratio``, the first as a share of the second.

    Raises:
        VerificationError: if the product differs from torch's.
    """
    torch.manual_seed(0)
    a, weight = torch.randn(n, K), torch.randn(PANEL * panels, K)
    packed, count = pack(weight), n * K * PANEL * panels
    verify(
        f"product {n}x{K}x{PANEL * panels}",
        lambda: {"product": product(a, packed).transpose(0, 1).flatten(1)},
        lambda: {"product": a @ weight.T},
    )
    # enough work for the clock's resolution
    times = max(1, 10**8 // count)

    def repeat() -> None:
        """Compute the product ``times`` times."""
        for _ in range(times):
            product(a, packed)

    peak, own = interleave(
        {"peak": partial(multiply_adds, times * count), "product": repeat}, seconds
    ).values()
    work = 2e-9 * times * count
    return {
        "shape": f"{n}x{K}x{PANEL * panels}",
        "product": work / own.seconds,
        "peak": work / peak.seconds,
        "ratio": 1 / own.ratio,
    }
