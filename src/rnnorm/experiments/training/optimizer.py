"""RMSProp as the released code of Cooijmans et al. 2016 has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rnnorm.norm.spec import check_number


class FlooredRMSprop(Optimizer):
    """RMSProp that divides by a root mean square of at least ``floor``.

    ``v ← α v + (1 − α) g²`` and ``w ← w − lr · g / max(√v, floor)``, where torch's RMSprop divides
    by ``√v + eps``. An entry of the gradient that is far smaller than the floor so makes a small
    step, as in plain gradient descent, and not a step of ``lr``.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        alpha: decay of the mean square.
        floor: the least divisor.

    Raises:
        ValueError: if ``lr`` is negative, ``alpha`` is not from 0 to 1, or ``floor`` is not
            positive.
        TypeError: if one of them is not a number.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        alpha: float = 0.9,
        floor: float = 1e-5,
    ) -> None:
        check_number("lr", lr, 0.0)
        check_number("alpha", alpha, 0.0, 1.0)
        check_number("floor", floor, 0.0)
        if floor == 0:
            raise ValueError(
                "floor must be above 0, got 0: a gradient that was always 0 would be divided by 0"
            )
        super().__init__(params, {"lr": lr, "alpha": alpha, "floor": floor})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step; ``closure``, if it is given, computes the loss first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["square_avg"] = torch.zeros_like(parameter)
                square, alpha = state["square_avg"], group["alpha"]
                square.mul_(alpha).addcmul_(gradient, gradient, value=1 - alpha)
                divisor = square.sqrt().clamp_(min=group["floor"])
                parameter.addcdiv_(gradient, divisor, value=-group["lr"])
        return loss
