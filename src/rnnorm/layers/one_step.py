"""The base of the one-step classes, which run a sequence of one frame."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rnnorm.kernels import dispatch
from rnnorm.layers.call import short_call
from rnnorm.layers.call.autocast import autocast_dtype, in_dtypes, result_dtypes
from rnnorm.layers.call.checks import (
    as_hx,
    check_tensors,
    check_traced,
    checked_step,
    states_of,
)
from rnnorm.layers.call.one_layer import CallSettings, run_layer
from rnnorm.layers.norm_parameters import register_norm, reset_norm
from rnnorm.layers.normalised_module import NormalisedModule
from rnnorm.norm.presets import NormLike, resolve
from rnnorm.tracing import compiled_by_new_torch, uncompiled


class OneStep(NormalisedModule, nn.RNNCellBase):
    """Base of RNNCell, LSTMCell and GRUCell; a subclass names its cell and torch.nn's class."""

    torch_class: ClassVar[type[nn.RNNCellBase]]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        norm: NormLike,
    ) -> None:
        spec = resolve(norm)
        if spec is not None and spec.scope("input") == "sequence":
            raise ValueError(
                f"norm.input must be 'frame' or None in {type(self).__name__}, got 'sequence': "
                "a cell sees one frame at a time"
            )
        super().__init__(
            input_size, hidden_size, bias, sum(self.cell.gates), device=device, dtype=dtype
        )
        self.norm = spec
        register_norm(self, self.cell, spec, hidden_size, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Draw the weights as torch.nn does, and reset γ and β to their initial values."""
        # first, since a frozen cell refuses
        self.reset_running_stats()
        super().reset_parameters()
        reset_norm(self, self.cell, getattr(self, "norm", None))

    def extra_repr(self) -> str:
        """Return torch's text, then the norm if there is one."""
        return super().extra_repr() + (f", norm={self.norm}" if self.norm is not None else "")

    @compiled_by_new_torch
    def forward(self, input: Tensor, hx: Any = None, step: int | Tensor | None = None) -> Any:
        """Run one step.

        Args:
            input: ``(B, I)`` or ``(I,)``.
            hx: the state as torch.nn takes it, zeros if None.
            step: index of this frame, which selects the statistics that are taken and used; also
                int64 ``(B,)``, for rows at different ages, but not in training with batch
                normalisation. None means 0, and warns once in evaluation with ``hx`` and
                statistics that differ between steps.

        Returns:
            the next state, in the form of torch.nn.

        Raises:
            ValueError: if an input or state has a wrong rank; if ``step`` is negative or above
                2**62, or a tensor in training with batch normalisation; if in training with
                gradients there are too few rows for a statistic, and no estimate.
            RuntimeError: if sizes do not fit.
            TypeError: if ``step`` is not an integer.
        """
        if not torch.compiler.is_compiling():
            found = short_call.one_step(self, input, hx, step)
            if found is not None:
                return found
        # an input that is not a tensor fails here as in torch.nn
        input.dim()
        kernel, traceable = self._choose(input, one_step=True)
        # torch.compile takes torch.nn's own step as it is
        run = self._run if traceable or kernel.layer is None else uncompiled(self._run)
        return run(kernel, input, hx, step)

    def explained(self, input: Tensor) -> tuple[str, dict[str, str]]:
        """Return the kernel of a step, and why those before it do not run.

        Raises:
            TypeError: if the input is a PackedSequence, which no step takes.
        """
        if not isinstance(input, Tensor):
            raise TypeError(f"input must be a tensor, got {type(input).__name__}")
        return dispatch.explain(**self._asked(input), one_step=True)

    def _run(
        self, kernel: dispatch.Kernel, input: Tensor, hx: Any, step: int | Tensor | None
    ) -> Any:
        dim = input.dim()
        rest = () if hx is None else (hx,)
        states = len(self.cell.states)
        given = states_of(hx, states)
        batched = dim == 2
        x = input if batched else input.unsqueeze(0)
        rows = x.size(0)
        shape = (rows, self.hidden_size)
        state = tuple(s.unsqueeze(0) for s in given) if dim == 1 else given
        fits = (
            dim in (1, 2) and x.size(1) == self.input_size and (hx is None or len(given) == states)
        )
        if not fits or any(s.dim() != 2 or s.shape != shape for s in state):
            self.torch_class.forward(self, input, *rest)
            raise RuntimeError(f"hx must have shape {shape}, got {[tuple(s.shape) for s in given]}")
        streams = step is None and bool(given)
        step = 0 if step is None else step
        step = checked_step(step, rows, self.training and self._has_statistics())
        if not self.training:
            self._warn(streams)

        if kernel.layer is None:
            return self.torch_class.forward(self, input, *rest)
        products = autocast_dtype(x.device)
        if products is None and x.dtype != self.weight_ih.dtype:
            self.torch_class.forward(self, input, *rest)
            raise RuntimeError(f"input must have dtype {self.weight_ih.dtype}, got {x.dtype}")
        check_tensors(x, given)
        check_traced(kernel, self.training and self.norm_takes_statistics())
        dtypes = None
        if products is not None:
            weight = self.weight_ih
            dtypes = result_dtypes(self.torch_class, products, input, weight, given, states)
        # created in the dtypes in which states are returned
        state = state or in_dtypes((x.new_zeros(shape),) * states, dtypes)
        sizes = active = None
        if self.training and self.synchronized():
            assert self.ranks is not None
            sizes = torch.tensor([rows], device="cpu")
            active = self.ranks.active_rows(sizes, x.device)
        settings = CallSettings(kernel, step, products)
        _, state, _ = run_layer(self, settings, x.unsqueeze(0), sizes, state, rows=active)
        state = in_dtypes([s if batched else s.squeeze(0) for s in state], dtypes)
        return as_hx(state)
