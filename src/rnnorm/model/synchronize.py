"""Statistics over the rows of several processes, or one average of each one's own."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rnnorm.layers.normalised_module import Recurrence
from rnnorm.layers.ranks import Ranks, all_reduce
from rnnorm.norm.frozen_population import FrozenPopulation
from rnnorm.norm.population import Population

Model = TypeVar("Model", bound=nn.Module)


def synchronize(model: Model, process_group: Any = None) -> Model:
    """From now on a step's statistics are those of the rows of all ranks, in training.

    What :class:`torch.nn.SyncBatchNorm` is for ordinary batch norm: outputs, gradients and
    population statistics are those of one process with the whole minibatch, for every cell, site
    and scope, ragged too. ``min_rows`` counts the rows of all ranks. Ranks may have different
    numbers of rows and of steps, but each has to call the layer as often, and backward too. Every
    rank begins with the same statistics, as :class:`torch.nn.parallel.DistributedDataParallel` sees
    to. The kernel is the one that would run without, and may be another on each rank. There is no
    second derivative. In evaluation, and where torch.distributed has one process or is not
    initialised, nothing changes.

    Means and sums of squared deviations are merged as in Chan et al. 1979.

    Args:
        model: its layers are changed in place; ordinary batch norm layers are left to
            :meth:`torch.nn.SyncBatchNorm.convert_sync_batchnorm`.
        process_group: of the ranks, or None for all processes.

    Returns:
        the model.

    Raises:
        RuntimeError: in a call of a layer, torch.distributed's own: a rank has died, or took longer
            than the time-out of the group.
    """
    return set_ranks(model, Ranks(process_group))


def set_ranks(model: Model, ranks: Ranks | None) -> Model:
    """Synchronises the layers of a model over ``ranks``, or with None no longer."""
    for module in model.modules():
        if isinstance(module, Recurrence):
            module.ranks = ranks
    return model


@torch.no_grad()
def average_population(model: nn.Module, process_group: Any = None) -> None:
    """Makes the population statistics of all ranks one: their average, by the rows of each.

    For layers that are not synchronised, before an evaluation. In training, a model within
    :class:`torch.nn.parallel.DistributedDataParallel` has to keep what each rank has seen:
    ``broadcast_buffers=False``. Ordinary batch norm layers are averaged too, by their minibatches.
    Counts become those of a rank on average, so that a second call changes nothing. Frozen parts
    (:func:`rnnorm.freeze`) keep theirs. In a single process nothing happens.

    Args:
        model: holds the layers; the same ones on every rank.
        process_group: of the ranks, or None for all processes.

    Raises:
        RuntimeError: torch.distributed's own, as :func:`synchronize`.
    """
    if not Ranks(process_group).several():
        return
    world = distributed.get_world_size(process_group)
    for module in model.modules():
        if isinstance(module, FrozenPopulation):
            continue
        if isinstance(module, Population):
            longest = torch.tensor([len(module)], device=module.mean.device)
            all_reduce(longest, distributed.ReduceOp.MAX, group=process_group)
            module.grow(int(longest), agreed=True)
        elif not (isinstance(module, _BatchNorm) and module.track_running_stats):
            continue
        for count in sum_over_ranks(module, process_group):
            count.copy_((count + world - 1) // world)


def sum_over_ranks(module: Population | _BatchNorm, group: Any = None) -> list[torch.Tensor]:
    """Puts the average over all ranks in the place of each one's moments, and sums the counts.

    Returns:
        the counts.
    """
    batches = module.num_batches_tracked
    assert batches is not None
    counts, weights = [batches], {"running_mean": batches, "running_var": batches}
    if isinstance(module, Population):
        rows = module.rows
        counts = [rows, batches]
        weights = {"mean": rows.unsqueeze(1), "var": (rows - batches).unsqueeze(1)}
    for name, weight in weights.items():
        moment = getattr(module, name)
        total, weighted = weight.double(), moment.double() * weight
        all_reduce(total, group=group)
        all_reduce(weighted, group=group)
        moment.copy_(torch.where(total > 0, weighted / total.clamp(min=1), moment))
    for count in counts:
        all_reduce(count, group=group)
    return counts
