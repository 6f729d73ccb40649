"""What the one-step classes share: a sequence of one frame."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rnnorm.cells.cell import Cell
from rnnorm.kernels import dispatch
from rnnorm.layers.autocast import output_dtype
from rnnorm.layers.layer import (
    check_state_dtype,
    check_step,
    register_norm,
    reset_norm,
    run_layer,
    uncompiled,
)
from rnnorm.norm.spec import BatchNorm, Norm, resolve


class Step(nn.RNNCellBase):
    """Base of RNNCell, LSTMCell and GRUCell; a subclass names its cell and torch.nn's class."""

    cell: Cell
    rival: ClassVar[type[nn.RNNCellBase]]
    states: ClassVar[int] = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        norm: str | Norm | None,
    ) -> None:
        norm = resolve(norm)
        if isinstance(norm, BatchNorm) and norm.input == "sequence":
            raise ValueError(
                f"norm.input must be 'frame' or None in {type(self).__name__}, got 'sequence': "
                "a cell sees one frame at a time"
            )
        super().__init__(
            input_size, hidden_size, bias, sum(self.cell.gates), device=device, dtype=dtype
        )
        self.norm = norm
        register_norm(self, self.cell, norm, hidden_size, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Draws the weights as torch.nn does; γ and β get their initial values."""
        super().reset_parameters()
        reset_norm(self, getattr(self, "norm", None))

    def extra_repr(self) -> str:
        """Torch's own, then the norm if there is one."""
        return super().extra_repr() + (f", norm={self.norm}" if self.norm is not None else "")

    def forward(self, input: Tensor, hx: Any = None, step: int | Tensor = 0) -> Any:
        """Runs one step.

        Args:
            input: ``(B, I)`` or ``(I,)``.
            hx: the state as torch.nn takes it, zeros if None.
            step: index of this frame, which says whose statistics are taken and used; in
                evaluation also int64 ``(B,)``, for rows at different ages.

        Returns:
            the next state, in the form of torch.nn.

        Raises:
            ValueError: an input or state of wrong rank; ``step`` that is negative, or a tensor in
                training; in training, too few rows for a statistic.
            RuntimeError: sizes that do not fit.
            TypeError: ``step`` that is no integer.
        """
        return uncompiled(self._run)(input, hx, step)

    def _run(self, input: Tensor, hx: Any, step: int | Tensor) -> Any:
        dim = input.dim()
        request = dispatch.Request(self.cell, self.norm, input.device, input.dtype)
        kernel = dispatch.choose(request)
        rest = () if hx is None else (hx,)
        if kernel.layer is None:
            check_step(step, None, self.training)
            return self.rival.forward(self, input, *rest)

        given = tuple(hx) if hx is not None and self.states > 1 else rest
        dims = {s.dim() for s in given}
        batched = dim == 2
        x = input if batched else input.unsqueeze(0)
        rows = x.size(0)
        state = given if batched else tuple(s.unsqueeze(0) for s in given)
        state = state or (x.new_zeros(rows, self.hidden_size),) * self.states
        fits = dim in (1, 2) and x.size(1) == self.input_size and dims <= {dim}
        if not fits or any(s.shape != (rows, self.hidden_size) for s in state):
            self.rival.forward(self, input, *rest)
            shapes = [tuple(s.shape) for s in given]
            raise RuntimeError(f"hx must have shape {(rows, self.hidden_size)}, got {shapes}")
        check_state_dtype(given, x)
        check_step(step, rows, self.training)
        _, state = run_layer(
            self, kernel, self.cell, self.norm, x.unsqueeze(0), None, state, step=step
        )
        dtype = output_dtype(self.rival, input, self.weight_ih, False)
        state = tuple((s if batched else s.squeeze(0)).to(dtype) for s in state)
        return state if self.states > 1 else state[0]
