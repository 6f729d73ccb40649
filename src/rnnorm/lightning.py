"""Callbacks for Lightning: exact and synchronised statistics, and annealed boundary slopes."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.plugins import TorchSyncBatchNorm
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from rnnorm.layers.hmlstm import HMLSTM
from rnnorm.layers.ranks import Ranks
from rnnorm.model.synchronize import set_ranks
from rnnorm.model.update_bn import update_bn
from rnnorm.norm.frozen_population import unfrozen_populations
from rnnorm.norm.spec import check_int, check_number


def estimate_statistics(loader: Iterable[Any], model: LightningModule) -> None:
    """Estimate population statistics as the exact average over minibatches (``update_bn``).

    Args:
        loader: minibatches.
        model: if it has a ``statistics_step``, that method is called with each minibatch; otherwise
            the model itself with the first element.
    """
    step = getattr(model, "statistics_step", None)
    forward = None if step is None else lambda _, batch: step(batch)
    update_bn(loader, model, model.device, forward=forward)


def estimate_in_trainer(
    trainer: Trainer, minibatches: Iterable[Any], model: LightningModule
) -> None:
    """Estimate population statistics on a trainer's device and in its precision.

    Args:
        trainer: the trainer, within a validation or a test.
        minibatches: minibatches before any hook of the transfer to the device.
        model: the trainer's model, or another one on the same device.
    """
    hooks: Any = trainer.datamodule  # type: ignore[attr-defined]
    if hooks is None or not is_overridden("on_before_batch_transfer", hooks):
        hooks = trainer.lightning_module

    def transferred(batch: Any) -> Any:
        # what Lightning does with a minibatch before a training step
        batch = trainer.precision_plugin.convert_input(batch)
        batch = hooks.on_before_batch_transfer(batch, dataloader_idx=0)
        return trainer.strategy.batch_to_device(batch, dataloader_idx=0)

    with trainer.precision_plugin.forward_context():
        estimate_statistics(map(transferred, minibatches), model)


class ExactStatistics(Callback):
    """A callback that re-estimates population statistics before each validation of a fit.

    While weights still change fast, a running average lags behind them and the accuracy in
    evaluation jumps from epoch to epoch. This callback sets the statistics to the exact average
    over training minibatches (:func:`rnnorm.update_bn`), also for the checkpoints. A model that
    needs more than the first element of a minibatch has a method ``statistics_step(batch)``, which
    runs the model over a minibatch as a training step gets it: on the device, after the hooks of
    the transfer, in the trainer's precision. Behind a ``WeightAveraging`` callback, the statistics
    are taken with the averaged weights. The training's loader is iterated once more, so its data
    set has to begin again each time: an iterator shared between passes would be used up.

    Args:
        batches: number of minibatches, in the epoch's order, or None for as many as training takes
            in an epoch (``limit_train_batches``). If the loader has no length, None means no more
            than training has taken since the last validation; if that is none, the statistics
            are not changed.
        batch_size: rows of these minibatches, or None for as many as in training. Statistics of
            few rows are noisy, and a recurrence carries their noise from step to step: if
            training takes small minibatches at a high learning rate, larger ones are needed here.
            The training's loader must then be a DataLoader with a map-style dataset and a
            ``batch_size``, or of another class that reads its attribute ``batch_size`` whenever it
            is iterated. A single row that is left over joins the minibatch before it.

    Raises:
        TypeError: if ``batches`` or ``batch_size`` is not an int.
        ValueError: if ``batches`` is less than 1 or ``batch_size`` less than 2; or, when training
            starts, if the loader is of another kind, there are several loaders, or a
            ``WeightAveraging`` comes after this callback.

    Example:
        >>> from rnnorm.lightning import ExactStatistics
        >>> callbacks = [ExactStatistics()]  # for the argument of lightning.Trainer
    """

    def __init__(self, batches: int | None = None, batch_size: int | None = None) -> None:
        check_int("batches", batches, 1, optional=True)
        check_int("batch_size", batch_size, 2, optional=True)
        self._batches, self._batch_size = batches, batch_size
        # minibatches that training has taken since the last validation
        self._trained = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse unsuitable loaders, and a WeightAveraging that comes after this callback."""
        self._trained = 0
        if not unfrozen_populations(pl_module):
            return
        self._check(trainer.train_dataloader)
        own = trainer.callbacks  # type: ignore[attr-defined]
        for callback in own[own.index(self) :]:
            if isinstance(callback, WeightAveraging):
                raise ValueError(
                    f"ExactStatistics must stand behind {type(callback).__name__} in callbacks: it "
                    "would take the statistics of weights that are not validated"
                )

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """Count the minibatches of training."""
        self._trained += 1

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Estimate the statistics with the weights that are validated."""
        if (
            trainer.sanity_checking
            or not unfrozen_populations(pl_module)
            or trainer.train_dataloader is None
        ):
            return
        train = trainer.train_dataloader
        most, trained = trainer.num_training_batches, self._trained
        self._trained = 0
        if math.isinf(most):
            most = trained
        if self._batch_size is not None:
            most = most * train.batch_size / self._batch_size
        count = self._batches or math.ceil(most)
        if count == 0:
            return
        minibatches = islice(iter(self.minibatches(train)), count)
        estimate_in_trainer(trainer, minibatches, pl_module)

    def minibatches(self, loader: Any) -> Iterable[Any]:
        """Return the training's minibatches, with ``batch_size`` rows each if that is given.

        Args:
            loader: the training's loader, whose own iteration is not affected.

        Raises:
            ValueError: if its batch size cannot be changed, or there are several loaders.
        """
        self._check(loader)
        size = self._batch_size
        if size is not None and isinstance(loader, DataLoader):
            rows = list(loader.sampler)
            whole, left = divmod(len(rows), size)
            parts = [rows[k * size : (k + 1) * size] for k in range(whole + (left > 1) or 1)]
            parts[-1] += rows[len(parts) * size :]
            return DataLoader(
                loader.dataset,
                batch_sampler=parts,
                num_workers=loader.num_workers,
                collate_fn=loader.collate_fn,
                timeout=loader.timeout,
                worker_init_fn=loader.worker_init_fn,
                multiprocessing_context=loader.multiprocessing_context,
                generator=loader.generator,
            )
        own: Iterable[Any] = copy.copy(loader)
        if isinstance(own, DataLoader):
            # persistent workers stay with the training
            own._iterator = None
        elif size is not None:
            own.batch_size = size  # type: ignore[attr-defined]
        return own

    def _check(self, loader: Any) -> None:
        """Refuse several loaders, and one whose batch size cannot be changed where it has to be."""
        fixed = getattr(loader, "batch_size", None) is None
        if isinstance(loader, DataLoader):
            fixed |= type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset)
        if self._batch_size is not None and fixed:
            raise ValueError(
                f"batch_size must be None, got {self._batch_size}: the training's loader, a "
                f"{type(loader).__name__}, has no batch size that could be changed"
            )
        if isinstance(loader, (Mapping, list, tuple)):
            raise ValueError(
                f"the training must have one loader, got a {type(loader).__name__} of "
                f"{len(loader)}: call rnnorm.update_bn in a callback of your own"
            )


class SynchronizedNorm(TorchSyncBatchNorm):
    """A plugin for statistics over all ranks, for ``lightning.Trainer(sync_batchnorm=True)``.

    Layers of rnnorm are synchronised by :func:`rnnorm.synchronize`, ordinary batch norm layers by
    Lightning itself, which needs a GPU.

    Example:
        >>> from rnnorm.lightning import SynchronizedNorm
        >>> options = dict(sync_batchnorm=True, plugins=SynchronizedNorm())  # of lightning.Trainer
    """

    def apply(self, model: nn.Module) -> nn.Module:
        """Synchronise the layers of a model."""
        return set_ranks(super().apply(model), Ranks())

    def revert(self, model: nn.Module) -> nn.Module:
        """End the synchronisation of the layers of a model."""
        return set_ranks(super().revert(model), None)


class SlopeAnnealing(Callback):
    """A callback that raises the slope of every :class:`rnnorm.HMLSTM` from epoch to epoch.

    The slope is ``min(most, 1 + rate * epoch)``, epochs counted from 0 (Chung et al. 2016): the
    hard sigmoid of the straight-through gradient approaches the step function. The ``slope`` that a
    layer was given is ignored.

    Args:
        rate: increase of the slope in an epoch.
        most: the largest slope.

    Raises:
        TypeError: if ``rate`` or ``most`` is not a number.
        ValueError: if ``rate`` is below 0 or ``most`` below 1.

    Example:
        >>> from rnnorm.lightning import SlopeAnnealing
        >>> callbacks = [SlopeAnnealing()]  # for the argument of lightning.Trainer
    """

    def __init__(self, rate: float = 0.04, most: float = 5.0) -> None:
        check_number("rate", rate, 0.0)
        check_number("most", most, 1.0)
        self._rate, self._most = rate, most

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the slope of the epoch."""
        for module in pl_module.modules():
            if isinstance(module, HMLSTM):
                module.slope = min(self._most, 1 + self._rate * trainer.current_epoch)
