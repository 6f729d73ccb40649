"""Stop a diverging training before a good checkpoint is overwritten."""

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
    """Checks loss and gradients before every update, parameters and statistics after it.

    A gradient that is not finite stops the training before the update.

    Raises:
        DivergedError: if a value is not finite; the message names the step and the value.
    """

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Check the sum of the losses of all processes, so that all stop together."""
        if not math.isfinite(value := processes.sum_over_all(loss.item())):
            raise _error(trainer, pl_module, f"the loss is {value}")

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Check the gradients before clipping.

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
        """Check the parameters and statistics before a checkpoint could keep them."""
        if name := _not_finite(pl_module.named_parameters()):
            raise _error(trainer, pl_module, f"the parameter {name} is not finite")
        buffers = [(n, b) for n, b in pl_module.named_buffers() if b.is_floating_point()]
        if name := _not_finite(buffers):
            raise _error(trainer, pl_module, f"the statistic {name} is not finite")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Log the divergence at a step after the last checkpoint; resuming drops the line."""
        if isinstance(exception, DivergedError):
            metrics = {DIVERGED: 1.0, "epoch": float(trainer.current_epoch)}
            for logger in trainer.loggers:
                logger.log_metrics(metrics, trainer.global_step)


def _not_finite(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """Return the name of the first tensor with a value that is not finite, or None."""
    named = [(name, tensor.detach()) for name, tensor in named if tensor.numel()]
    if not named:
        return None
    # inf and nan survive a sum, which may also overflow: Apple's GPUs lack float64
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
