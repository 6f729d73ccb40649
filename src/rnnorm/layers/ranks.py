"""The processes that work on one minibatch, each with rows of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn.functional import pad

from rnnorm.norm.merged_moments import ActiveRows


def all_reduce(tensor: Tensor, op: Any = None, group: Any = None) -> None:
    """As that of torch.distributed, also of a tensor on the CPU in a group of NCCL."""
    elsewhere = tensor.is_cpu and distributed.get_backend(group) == "nccl"
    there = tensor.cuda() if elsewhere else tensor
    distributed.all_reduce(there, distributed.ReduceOp.SUM if op is None else op, group=group)
    if elsewhere:
        tensor.copy_(there)


@dataclass(frozen=True)
class Ranks:
    """A process group; None stands for all processes, whatever group that will be."""

    group: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        # a group cannot be copied
        return self

    def several(self) -> bool:
        """Whether this is one of several processes now."""
        available = distributed.is_available() and distributed.is_initialized()
        return available and distributed.get_world_size(self.group) > 1

    def active_rows(self, sizes: Tensor, device: torch.device) -> ActiveRows:
        """What all ranks have, with as many steps as the longest of them.

        Args:
            sizes: ``(T,)`` int64 on the CPU, active rows of this rank.
            device: where the group's backend wants tensors.
        """
        longest = torch.tensor([len(sizes)], device=device)
        all_reduce(longest, distributed.ReduceOp.MAX, group=self.group)
        sizes = pad(sizes, (0, int(longest) - len(sizes))).to(device)
        world = distributed.get_world_size(self.group)
        each = sizes.new_empty(world, len(sizes))
        distributed.all_gather(list(each), sizes, group=self.group)
        return ActiveRows(each.cpu(), self.group)
