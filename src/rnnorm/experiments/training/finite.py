"""Stops a training that diverges before it can overwrite anything good."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from rnnorm.experiments.training import processes
from rnnorm.experiments.training.metrics import DIVERGED


class DivergedError(RuntimeError):
    """The loss, a gradient, a parameter or a statistic is not finite."""


class StopIfNotFinite(Callback):
    """Checks the loss and the gradients of every step before, the parameters after the update.

    A gradient that is not finite stops the training before the parameters see it.

    Raises:
        DivergedError: naming the step and what is not finite.
    """

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Check the loss: the sum of those of all processes, which stop together."""
        if not math.isfinite(value := processes.sum_over_all(loss.item())):
            raise _error(trainer, pl_module, f"the loss is {value}")

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Check the gradients, before they are clipped.

        Where a loss is scaled (``precision="16-mixed"``) gradients overflow now and then; the step
        is then left out, with a smaller scale from there on, down to 1.
        """
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None and scaler.get_scale() > 1:
            return
        named = [(n, p.grad) for n, p in pl_module.named_parameters() if p.grad is not None]
        if name := _not_finite(named):
            raise _error(trainer, pl_module, f"the gradient of {name} is not finite")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Check parameters and statistics, before a checkpoint could keep them."""
        if name := _not_finite(pl_module.named_parameters()):
            raise _error(trainer, pl_module, f"the parameter {name} is not finite")
        buffers = [(n, b) for n, b in pl_module.named_buffers() if b.is_floating_point()]
        if name := _not_finite(buffers):
            raise _error(trainer, pl_module, f"the statistic {name} is not finite")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Log it, after the last checkpoint, so that a resumed training drops the line."""
        if isinstance(exception, DivergedError):
            metrics = {DIVERGED: 1.0, "epoch": float(trainer.current_epoch)}
            for logger in trainer.loggers:
                logger.log_metrics(metrics, trainer.global_step)


def _not_finite(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """Name of the first tensor that has a value which is not finite."""
    named = [(name, tensor.detach()) for name, tensor in named if tensor.numel()]
    if not named:
        return None
    # one sum of each tensor instead of a test of every value: inf and nan survive sums. One that
    # overflows by itself is looked into, since Apple's GPUs have no float64
    sums = torch.stack([tensor.sum(dtype=torch.float32) for _, tensor in named])
    if torch.isfinite(sums).all():
        return None
    return next((name for name, tensor in named if not torch.isfinite(tensor).all()), None)


def _error(trainer: Trainer, module: LightningModule, what: str) -> DivergedError:
    advice = "Try a smaller learning rate or gradient_clip_val"
    batch = any("population_" in name for name, _ in module.named_buffers())
    layer = not batch and any("gamma_" in name for name, _ in module.named_parameters())
    if (batch or layer) and module.hparams.get("initial_noise") == 0:
        alike = "sequences of a minibatch start with the same values, batch statistics have"
        if layer:
            alike = "units have the same values, layer statistics have"
        advice = (
            f"Where all {alike} no variance and gradients explode: "
            "--model.init_args.initial_noise=0.1 is the cure of the papers on batch norm. Else try "
            "a smaller learning rate or gradient_clip_val"
        )
    return DivergedError(
        f"training diverged at step {trainer.global_step} (epoch {trainer.current_epoch}): {what}. "
        f"{advice}"
    )
