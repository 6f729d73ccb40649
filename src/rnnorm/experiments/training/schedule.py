"""Change the learning rate from epoch to epoch."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class DecayAfter(LRScheduler):
    """Divides the learning rate after every epoch from a certain one on (Zaremba et al. 2014).

    Args:
        optimizer: has the learning rate of the first epochs.
        epochs: number of these first epochs.
        divisor: divides the learning rate before each later epoch.

    Raises:
        ValueError: if ``epochs`` or ``divisor`` is not positive.
    """

    def __init__(self, optimizer: Optimizer, epochs: int, divisor: float) -> None:
        if epochs < 1 or divisor <= 0:
            raise ValueError(f"epochs and divisor must be positive, got {epochs} and {divisor}")
        self.epochs, self.divisor = epochs, divisor
        super().__init__(optimizer)

    def get_lr(self) -> list[float | Tensor]:
        """Return the learning rate of each parameter group in this epoch."""
        times = max(0, self.last_epoch - self.epochs + 1)
        return [rate / self.divisor**times for rate in self.base_lrs]
