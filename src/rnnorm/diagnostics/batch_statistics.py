"""Evaluation with the statistics of the minibatch itself, as in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from rnnorm.layers.normalised_module import NormalisedModule, temporarily
from rnnorm.layers.stateful import states_apart
from rnnorm.norm.frozen_population import FrozenPopulation
from rnnorm.norm.population import Population


def batch_normalised(model: nn.Module) -> list[nn.Module]:
    """Return the recurrent layers and cells with batch norm in a model, without frozen ones."""
    layers = [module for module in model.modules() if isinstance(module, NormalisedModule)]
    return [layer for layer in layers if layer.norm_takes_statistics() and not layer.frozen()]


@contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """Let a model in evaluation mode normalise by each minibatch's own statistics.

    This includes ordinary batch norm layers, such as :class:`torch.nn.BatchNorm1d`. Nothing is
    random: no dropout, no noise on h_0, no sampled boundaries. A :class:`rnnorm.Stateful` begins
    anew. Afterwards everything, including states and population statistics, is as before. A
    minibatch needs at least two rows, or two frames with sequence scope. Synchronised layers
    (:func:`rnnorm.synchronize`) use the rows of all ranks, each of which then has to call them.
    Frozen parts (:func:`rnnorm.freeze`) use their population statistics.

    Args:
        model: in evaluation mode.

    Raises:
        RuntimeError: if all layers with statistics are frozen.
    """
    ordinary = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    layers = [*batch_normalised(model), *ordinary]
    if not layers and any(isinstance(module, FrozenPopulation) for module in model.modules()):
        raise RuntimeError("a frozen model has no batch statistics: take the one it is a copy of")
    before = [{name: b.clone() for name, b in layer.named_buffers()} for layer in layers]
    populations = [m for layer in layers for m in layer.modules() if isinstance(m, Population)]
    rows = [len(population) for population in populations]
    try:
        # only these layers are in training: others stay in evaluation
        calm = {"dropout": 0.0, "initial_noise": 0.0, "_draws": False}
        with (
            states_apart(model.modules()),
            # copies must not grow along with rows that are dropped again
            temporarily(populations, _grows_alone=True),
            temporarily(layers, training=True, _population_serves=False, **calm),
        ):
            yield
    finally:
        for layer, buffers in zip(layers, before, strict=True):
            layer.load_state_dict(buffers, strict=False)
        for population, count in zip(populations, rows, strict=True):
            # loading has added the rows of a horizon
            population.resize(count)
