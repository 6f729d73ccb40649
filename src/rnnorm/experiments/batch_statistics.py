"""Evaluation with the statistics of the minibatch itself, as in training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

import rnnorm

_LAYERS = (
    rnnorm.RNN,
    rnnorm.LSTM,
    rnnorm.GRU,
    rnnorm.RNNCell,
    rnnorm.LSTMCell,
    rnnorm.GRUCell,
)
# what a layer does in training, less what is random
_SWITCHES = {"training": True, "dropout": 0.0, "initial_noise": 0.0}


def batch_normalised(model: nn.Module) -> list[nn.Module]:
    """The recurrent layers of a model that have batch statistics."""
    layers = [module for module in model.modules() if isinstance(module, _LAYERS)]
    return [layer for layer in layers if isinstance(layer.norm, rnnorm.BatchNorm)]


@contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """Let a model in evaluation mode normalise by each minibatch's own statistics.

    There is neither dropout nor noise on h_0, and afterwards everything is as it was before: the
    population statistics, too. A minibatch needs at least ``norm.min_rows`` rows.

    Args:
        model: in evaluation mode.
    """
    layers = batch_normalised(model)
    before = [{name: b.clone() for name, b in layer.named_buffers()} for layer in layers]
    given = [
        {name: value for name, value in vars(layer).items() if name in _SWITCHES}
        for layer in layers
    ]
    try:
        # the layers alone, so that what lies around them stays in evaluation
        for layer, values in zip(layers, given, strict=True):
            vars(layer).update({name: _SWITCHES[name] for name in values})
        yield
    finally:
        for layer, buffers, values in zip(layers, before, given, strict=True):
            layer.load_state_dict(buffers, strict=False)
            vars(layer).update(values)


class BatchStatistics(Callback):
    """Tests with :func:`batch_statistics`: the trainer puts the whole model into evaluation."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Switch them on."""
        self._stack.enter_context(batch_statistics(pl_module))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Switch them off."""
        self._stack.close()


class SeveralRows:
    """The minibatches of a loader that have more than one row: a single row has no statistics.

    Args:
        loader: minibatches whose first element is ``(T, B, ...)``.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        """In the loader's order."""
        return (batch for batch in self.loader if batch[0].shape[1] > 1)
