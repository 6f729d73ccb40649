"""Exact population statistics over a data set."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import PackedSequence

from rnnorm.layers.normalised_module import NormalisedModule, temporarily
from rnnorm.layers.stateful import states_apart
from rnnorm.model.synchronize import sum_over_ranks
from rnnorm.norm.frozen_population import FrozenPopulation, unfrozen_populations
from rnnorm.norm.population import Population

Model = TypeVar("Model", bound=nn.Module)

_IN_LIGHTNING = (
    "; with rnnorm.lightning.ExactStatistics give the model a method statistics_step(batch) instead"
)


@torch.no_grad()
def update_bn(
    loader: Iterable[Any],
    model: Model,
    device: torch.device | str | int | None = None,
    *,
    forward: Callable[[Model, Any], Any] | None = None,
) -> None:
    """Re-estimate all population statistics as the exact average over ``loader``.

    It replaces :func:`torch.optim.swa_utils.update_bn`: ordinary batch norm layers are re-estimated
    too. Meanwhile the model's own ``training`` is False, so that dropout is off, and
    ``initial_noise`` is on; a :class:`Stateful` begins anew, and then continues from minibatch to
    minibatch of as many rows. Training modes, momenta and kept states are restored afterwards, and
    after an error the statistics too. Frozen parts (:func:`rnnorm.freeze`) are left as they are.
    For a model without batch norm nothing happens but a warning.

    Under torch.distributed every rank calls this function with its own loader, and all get the
    average over all loaders. A synchronised layer (:func:`rnnorm.synchronize`) needs the same
    number of minibatches on each rank, and gets the average over its process group.

    A step with fewer rows over the whole loader than four times ``min_rows``, and than the first
    step, uses the statistics of an earlier step.

    Args:
        loader: minibatches, as mixed as in training and preferably large, since the noise of
            statistics of few rows stays in the average. All are taken: pass a part of an endless
            loader, such as ``itertools.islice(loader, 100)``. The first element of a pair is the
            input; a PackedSequence is one input.
        model: holds the layers.
        device: device that inputs are moved to, if given.
        forward: ``forward(model, batch)`` is called instead of the model, if that needs more than
            the first element; ``batch`` is passed as the loader returns it.

    Raises:
        ValueError: if ``loader`` has no minibatch, or none with enough rows for a statistic, or,
            without ``forward``, a list of another number of elements than one or two.
        TypeError: if the input cannot be moved to ``device``, such as a dict: use ``forward``.
        RuntimeError: if all layers with statistics are frozen.
    """
    if isinstance(model, DistributedDataParallel):
        # forward of DistributedDataParallel would copy the first rank's statistics to all ranks
        model = model.module
    modules = list(model.modules())
    ordinary = [m for m in modules if isinstance(m, _BatchNorm) and m.track_running_stats]
    populations: list[Population | _BatchNorm] = [*unfrozen_populations(model), *ordinary]
    if not populations:
        for module in modules:
            if isinstance(module, FrozenPopulation):
                # a frozen population refuses, and says why
                module.reset_running_stats()
        # stacklevel names the caller, across the wrapper of no_grad
        warnings.warn("model has no batch norm layer: there is nothing to update", stacklevel=3)
        return
    layers = [m for m in modules if isinstance(m, NormalisedModule) and not m.frozen()]
    active = [*populations, *layers]
    before = {module: copy_buffers(module) for module in populations}
    try:
        with (
            states_apart(modules),
            temporarily(modules, training=False, _other_rows_begin=True),
            # copies of the model must not grow along if an error restores its rows
            temporarily(populations, _grows_alone=True),
            temporarily(active, training=True, momentum=None, dropout=0.0, _draws=False),
        ):
            for module in populations:
                module.reset_running_stats()
            _run(loader, model, device, forward)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            # populations of synchronised layers are averaged already
            synchronized = {
                m for layer in layers if layer.ranks is not None for m in layer.children()
            }
            for module in populations:
                if module not in synchronized:
                    sum_over_ranks(module)
        own = [module for module in populations if isinstance(module, Population)]
        if own and not any([module.num_batches_tracked.any() for module in own]):
            raise ValueError(
                "loader must have a minibatch of at least two rows that runs through the layers of "
                "model, with finite values: no statistic could be taken"
            )
        for module in own:
            module.forget_rare_steps()
            # now that nothing can fail, copies grow to the same length
            module.resize(len(module))
    except BaseException:
        for module, buffers in before.items():
            put_buffers(module, buffers)
            if isinstance(module, Population):
                # its rows are gone on purpose
                module.resize(len(module))
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
            if len(batch) not in (1, 2):
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


@torch.inference_mode(False)
def copy_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of the buffers of a module, without its children's, by name."""
    return {name: buffer.clone() for name, buffer in module.named_buffers(recurse=False)}


@torch.inference_mode(False)
def put_buffers(module: nn.Module, buffers: Mapping[str, Tensor], rows: int | None = None) -> None:
    """Give a module these buffers, or copies of their first ``rows`` rows."""
    for name, buffer in buffers.items():
        setattr(module, name, buffer if rows is None else buffer[:rows].clone())
