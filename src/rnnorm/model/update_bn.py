"""Exact population statistics over a data set."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import PackedSequence

from rnnorm.layers.normalised_module import Recurrence
from rnnorm.layers.temporarily import temporarily
from rnnorm.model.synchronize import sum_over_ranks
from rnnorm.norm.frozen_population import FrozenPopulation, unfrozen_populations
from rnnorm.norm.population import Population, copy_buffers, put_buffers

Model = TypeVar("Model", bound=nn.Module)

_IN_LIGHTNING = "; for ExactStatistics it is a method of the model, statistics_step(batch)"


@torch.no_grad()
def update_bn(
    loader: Iterable[Any],
    model: Model,
    device: torch.device | str | int | None = None,
    *,
    forward: Callable[[Model, Any], Any] | None = None,
) -> None:
    """Re-estimates all population statistics as the exact average over ``loader``.

    It takes the place of :func:`torch.optim.swa_utils.update_bn`: ordinary batch norm layers are
    re-estimated as well. The model's own ``training`` is False meanwhile, so that dropout is off,
    and ``initial_noise`` is on; training modes and momenta are restored afterwards, and if anything
    fails the statistics too. Frozen parts (:func:`rnnorm.freeze`) stay as they are. A model without
    batch norm is left alone, with a warning. Under torch.distributed every rank calls it with a
    loader of its own, and all get the average over all of them; a synchronised layer
    (:func:`rnnorm.synchronize`) needs as many minibatches on each, and gets the average over its
    process group. A step seen by fewer rows than four times ``min_rows`` over the whole loader, and
    than the first step, is served by an earlier one.

    Args:
        loader: minibatches, as mixed as those of training, and better larger than smaller: the
            noise in statistics of few rows is in the average too. All are taken: of a loader
            without an end give a part, as ``itertools.islice(loader, 100)`` is. Of a pair the first
            element is the input, a PackedSequence is one input.
        model: holds the layers.
        device: where the inputs are moved to, if given.
        forward: ``forward(model, batch)`` in place of the call, where a model needs more than the
            first element; ``batch`` is then passed as it comes from the loader.

    Raises:
        ValueError: ``loader`` has no minibatch, none that a statistic could be taken of, or without
            ``forward`` one of more than two elements.
        TypeError: the input cannot be moved to ``device``: a dict, say, which needs ``forward``.
        RuntimeError: all that has statistics is frozen.
    """
    if isinstance(model, DistributedDataParallel):
        # its forward would copy the first rank's statistics to all
        model = model.module
    modules = list(model.modules())
    ordinary = [m for m in modules if isinstance(m, _BatchNorm) and m.track_running_stats]
    populations: list[Population | _BatchNorm] = [*unfrozen_populations(model), *ordinary]
    if not populations:
        for module in modules:
            if isinstance(module, FrozenPopulation):
                # which refuses, and says why
                module.reset_running_stats()
        # the call of this function, which no_grad wraps
        warnings.warn("model has no batch norm layer: there is nothing to update", stacklevel=3)
        return
    layers = [m for m in modules if isinstance(m, Recurrence) and not m.frozen()]
    active = [*populations, *layers]
    before = {module: copy_buffers(module) for module in populations}
    try:
        with (
            temporarily(modules, training=False),
            temporarily(active, training=True, momentum=None, dropout=0.0, _draws=False),
        ):
            for module in populations:
                module.reset_running_stats()
            _run(loader, model, device, forward)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            # those of a synchronised layer are its group's already
            one = {m for layer in layers if layer.ranks is not None for m in layer.children()}
            for module in populations:
                if module not in one:
                    sum_over_ranks(module)
        own = [module for module in populations if isinstance(module, Population)]
        if own and not any([module.num_batches_tracked.any() for module in own]):
            raise ValueError(
                "loader must have a minibatch of at least two rows that runs through the layers of "
                "model: no statistic could be taken"
            )
        for module in own:
            module.forget_rare_steps()
    except BaseException:
        for module, buffers in before.items():
            put_buffers(module, buffers)
        raise


def _run(
    loader: Iterable[Any],
    model: Model,
    device: torch.device | str | int | None,
    forward: Callable[[Model, Any], Any] | None,
) -> None:
    batch = None
    for batch in loader:
        if forward is not None:
            forward(model, batch)
            continue
        if isinstance(batch, (list, tuple)) and not isinstance(batch, PackedSequence):
            if len(batch) > 2:
                raise ValueError(
                    f"a minibatch is an input or a pair of it and a target, got {len(batch)} "
                    "elements: say with forward= what the model takes, as in "
                    f"forward=lambda model, batch: model(batch[0], batch[1]){_IN_LIGHTNING}"
                )
            batch = batch[0]
        if device is not None and not hasattr(batch, "to"):
            raise TypeError(
                f"a minibatch's input must have a method to(device), got a "
                f"{type(batch).__name__}: say with forward= what the model takes{_IN_LIGHTNING}"
            )
        model(batch if device is None else batch.to(device))
    if batch is None:
        raise ValueError("loader has no minibatch to take statistics of")
