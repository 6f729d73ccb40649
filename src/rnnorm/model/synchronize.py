"""Statistics over the rows of several processes, or the average of their statistics."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rnnorm.layers.normalised_module import NormalisedModule
from rnnorm.layers.ranks import Ranks, all_reduce
from rnnorm.norm.frozen_population import FrozenPopulation
from rnnorm.norm.population import Population

Model = TypeVar("Model", bound=nn.Module)


def synchronize(model: Model, process_group: Any = None) -> Model:
    """Make the layers of a model take statistics over the rows of all ranks, in training.

    This does for rnnorm what :class:`torch.nn.SyncBatchNorm` does for ordinary batch norm: outputs,
    gradients and population statistics are those of one process with the whole minibatch, for every
    cell, site and scope, also with ragged rows. ``min_rows`` counts the rows of all ranks. Ranks
    may have different numbers of rows and of steps, but each has to call the layer, and backward,
    equally often. Every rank has to begin with the same statistics, as
    :class:`torch.nn.parallel.DistributedDataParallel` ensures. Each rank runs the kernel that it
    would run alone. There is no second derivative. In evaluation, and if torch.distributed has one
    process or is not initialised, nothing changes.

    Means and sums of squared deviations are merged as in Chan et al. 1979.

    Args:
        model: its layers are changed in place; ordinary batch norm layers are left to
            :meth:`torch.nn.SyncBatchNorm.convert_sync_batchnorm`.
        process_group: process group of the ranks, or None for all processes.

    Returns:
        the model.

    Raises:
        RuntimeError: if, in a later call of a layer, a rank has died or takes longer than the
            time-out of the group; the error is torch.distributed's.
    """
    return set_ranks(model, Ranks(process_group))


def set_ranks(model: Model, ranks: Ranks | None) -> Model:
    """Synchronise the layers of a model over ``ranks``, or end it with None."""
    for module in model.modules():
        if isinstance(module, NormalisedModule):
            module.ranks = ranks
    return model


@torch.no_grad()
def average_population(model: nn.Module, process_group: Any = None) -> None:
    """Replace the population statistics of every rank by their average, weighted by rows.

    Call it before an evaluation, for layers that are not synchronised. In training, a model in
    :class:`torch.nn.parallel.DistributedDataParallel` has to keep each rank's own statistics:
    ``broadcast_buffers=False``. Ordinary batch norm layers are averaged too, weighted by their
    minibatches. Counts are averaged over ranks, so that a second call changes nothing. Frozen parts
    (:func:`rnnorm.freeze`) keep their statistics. In a single process nothing happens.

    Args:
        model: holds the layers, equal ones on every rank.
        process_group: process group of the ranks, or None for all processes.

    Raises:
        RuntimeError: as :func:`synchronize`.
    """
    if not Ranks(process_group).several():
        return
    world = distributed.get_world_size(process_group)
    for module in model.modules():
        if isinstance(module, FrozenPopulation):
            continue
        if not isinstance(module, Population) and not (
            isinstance(module, _BatchNorm) and module.track_running_stats
        ):
            continue
        for count in sum_over_ranks(module, process_group):
            count.copy_((count + world - 1) // world)


def sum_over_ranks(module: Population | _BatchNorm, group: Any = None) -> list[torch.Tensor]:
    """Replace a module's moments by the average over all ranks, its counts by their sum.

    Returns:
        the summed counts.
    """
    if isinstance(module, Population):
        # ranks may have seen sequences of other lengths
        longest = torch.tensor([len(module)], device=module.mean.device)
        all_reduce(longest, distributed.ReduceOp.MAX, group=group)
        module.grow(int(longest), agreed=True)
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
