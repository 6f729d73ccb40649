"""Exchange numbers and objects among the processes of one training."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from torch import distributed


def is_first() -> bool:
    """Return whether this process writes and prints, known before the processes connect."""
    return bool(getattr(rank_zero_only, "rank", 0) == 0)


def count() -> int:
    """Return the number of processes, or 1 before the processes connect."""
    met = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if met else 1


def max_over_all(value: int) -> int:
    """Return the largest of all processes' numbers."""
    if count() == 1:
        return value
    number = torch.tensor([value], device=_device())
    distributed.all_reduce(number, distributed.ReduceOp.MAX)
    return int(number)


def sum_over_all(value: float) -> float:
    """Return the sum of all processes' numbers."""
    if count() == 1:
        return value
    number = torch.tensor([value], dtype=torch.float64, device=_device())
    distributed.all_reduce(number)
    return float(number)


def _device() -> str:
    return "cuda" if distributed.get_backend() == "nccl" else "cpu"


def loss_weight(terms: int) -> float:
    """Return the factor of a mean over some terms that makes the processes' mean exact.

    DistributedDataParallel averages gradients over processes with different numbers of terms.
    """
    every = sum_over_all(terms) if count() > 1 else 0
    # possibly no process has a term
    return count() * terms / every if every else 1.0


def gather(value: Any) -> list[Any]:
    """Return the values of all processes, in the order of their ranks."""
    every = [value] * count()
    if len(every) > 1:
        distributed.all_gather_object(every, value)
    return every


def of_this_process(every: list[Any]) -> Any:
    """Return this process's value of those that :func:`gather` returned."""
    return every[distributed.get_rank() if len(every) > 1 else 0]
