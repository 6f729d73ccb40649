"""The processes that work on one minibatch, each on its own rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn.functional import pad

from rnnorm.norm.merged_moments import ActiveRows


def all_reduce(tensor: Tensor, op: Any = None, group: Any = None) -> None:
    """Call torch.distributed.all_reduce, also for a CPU tensor in a group of NCCL."""
    needs_gpu = tensor.is_cpu and distributed.get_backend(group) == "nccl"
    reduced = tensor.cuda() if needs_gpu else tensor
    distributed.all_reduce(reduced, distributed.ReduceOp.SUM if op is None else op, group=group)
    if needs_gpu:
        tensor.copy_(reduced)


@dataclass(frozen=True)
class Ranks:
    """A process group, or None for all processes at the time of a call."""

    group: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        # a group cannot be copied
        return self

    def several(self) -> bool:
        """Tell whether the group now has more than one process."""
        available = distributed.is_available() and distributed.is_initialized()
        return available and distributed.get_world_size(self.group) > 1

    def active_rows(self, sizes: Tensor, device: torch.device) -> ActiveRows:
        """Gather the active rows of all ranks, padded with 0 to the longest rank's steps.

        Args:
            sizes: ``(T,)`` int64 on the CPU, active rows of this rank.
            device: device on which the group's backend takes tensors.
        """
        longest = torch.tensor([len(sizes)], device=device)
        all_reduce(longest, distributed.ReduceOp.MAX, group=self.group)
        sizes = pad(sizes, (0, int(longest) - len(sizes))).to(device)
        world = distributed.get_world_size(self.group)
        each = sizes.new_empty(world, len(sizes))
        distributed.all_gather(list(each), sizes, group=self.group)
        return ActiveRows(each.cpu(), self.group)
