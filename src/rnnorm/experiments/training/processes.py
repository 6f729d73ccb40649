"""The processes of one training: what they say to each other."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from torch import distributed


def is_first() -> bool:
    """Whether this is the process that writes and speaks, known before they have met."""
    return bool(getattr(rank_zero_only, "rank", 0) == 0)


def count() -> int:
    """How many there are; 1 before they have met."""
    met = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if met else 1


def max_over_all(value: int) -> int:
    """The largest of all processes' numbers."""
    if count() == 1:
        return value
    number = torch.tensor([value], device=_device())
    distributed.all_reduce(number, distributed.ReduceOp.MAX)
    return int(number)


def sum_over_all(value: float) -> float:
    """The sum of all processes' numbers."""
    if count() == 1:
        return value
    number = torch.tensor([value], dtype=torch.float64, device=_device())
    distributed.all_reduce(number)
    return float(number)


def _device() -> str:
    return "cuda" if distributed.get_backend() == "nccl" else "cpu"


def loss_weight(own_part: int) -> float:
    """What a mean over ``own`` terms is multiplied by, for the mean over processes to be right.

    DistributedDataParallel averages gradients over the processes, whose numbers of terms differ.
    """
    every = sum_over_all(own_part) if count() > 1 else 0
    # no process may have a term
    return count() * own_part / every if every else 1.0


def gather(value: Any) -> list[Any]:
    """What all processes have, in the order of their ranks."""
    every = [value] * count()
    if len(every) > 1:
        distributed.all_gather_object(every, value)
    return every


def own_part(every: list[Any]) -> Any:
    """This process's part of what :func:`of_each` returned."""
    return every[distributed.get_rank() if len(every) > 1 else 0]
