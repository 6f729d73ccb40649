"""How the two passes of a fused kernel are called: as operators where something may see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rnnorm.kernels.inputs import LEAVES, MOMENTS, Inputs, Options
from rnnorm.kernels.operators import (
    CHANGED,
    SAVED_NAMES,
    for_backward,
    gradients,
    keep,
    kept,
    saved,
    setup_forward,
)
from rnnorm.norm.merged_moments import ActiveRows
from rnnorm.tracing import unobserved


class Passes(NamedTuple):
    """Those of a kernel.

    Args:
        forward: takes inputs, options, whether backward follows and the active rows of all ranks,
            None for this process alone; without autograd.
        backward: takes the arguments of the operator, and such rows; without autograd.
        forward_operator: the same as a custom operator.
        backward_operator: likewise.
    """

    forward: Callable[[Inputs, Options, bool, ActiveRows | None], Sequence[Tensor]]
    backward: Callable[..., Sequence[Tensor]]
    forward_operator: Any
    backward_operator: Any

    def make_differentiable(self) -> None:
        """Gives the forward operator its derivative."""

        def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
            found = self.gradients(ctx, saved(ctx, self.forward_operator), grads)
            return (*found, *[None] * (len(ctx.needs_input_grad) - LEAVES))

        self.forward_operator.register_autograd(backward, setup_context=setup_forward)

    def gradients(
        self,
        ctx: Any,
        tensors: tuple[Any, ...],
        grads: tuple[Tensor | None, ...],
        rows: ActiveRows | None = None,
    ) -> list[Tensor | None]:
        """As ``operators.gradients``, by the operator where something may see it."""
        # only a second derivative needs the operator, which has no exchange
        as_operator = rows is None and (
            torch.is_grad_enabled() or not unobserved((*tensors, *grads[:3]))
        )
        backward = self.backward_operator if as_operator else partial(self.backward, rows=rows)
        return gradients(ctx, tensors, grads, backward)

    def __call__(
        self, inputs: Inputs, options: Options, rows: ActiveRows | None = None
    ) -> Sequence[Tensor]:
        """The results of the forward pass, the first three with a derivative."""
        differentiable = inputs.differentiable
        if rows is None and not unobserved(inputs):
            return self.forward_operator(*inputs, *options, differentiable)  # type: ignore[no-any-return]
        if any([t is not None and t.is_neg() for t in inputs]):
            # before an operator PyTorch does so itself
            inputs = Inputs._make([None if t is None else t.resolve_neg() for t in inputs])
        if not differentiable:
            return self.forward(inputs, options, False, rows)
        moments: list[Tensor] = []
        function = FusedLayer if rows is None else SynchronizedFusedLayer
        results = function.apply(*inputs[:LEAVES], inputs[LEAVES:], options, self, rows, moments)  # type: ignore[no-untyped-call]
        return (*results, *moments)


class FusedLayer(torch.autograd.Function):
    """A kernel's passes without the dispatch of operators.

    That takes longer than a short sequence does. Only where nothing would see the operator.
    Takes the inputs that may have gradients, the others, the options, the passes, the active rows
    of all ranks or None, and a list for the moments, which as outputs would cost more; returns
    output, h_n and c_n.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        """The forward pass."""
        *first, rest, ctx.options, ctx.passes, ctx.rows, moments = arguments
        inputs = Inputs(*first, *rest)
        results = ctx.passes.forward(inputs, ctx.options, True, ctx.rows)
        keep(ctx, (*inputs, *for_backward(results)))
        ctx.sizes = inputs.sizes.tolist()
        ctx.set_materialize_grads(False)
        moments += results[MOMENTS]
        return tuple(results[:3])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """The backward pass.

        Raises:
            RuntimeError: a saved tensor, or the gradient of a result, has another form than it had
                in the forward pass, or ``sizes`` other numbers.
        """
        tensors = kept(ctx, SAVED_NAMES)
        if (sizes := tensors[1].tolist()) != ctx.sizes:
            raise RuntimeError(
                f"sizes were saved for the backward pass as {ctx.sizes}, and came back as {sizes}: "
                f"{CHANGED}"
            )
        return (*ctx.passes.gradients(ctx, tensors, grads, ctx.rows), *[None] * 5)


class SynchronizedFusedLayer(FusedLayer):
    """Likewise with statistics of the rows of several processes, which nothing may look into."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """The backward pass, which has no derivative."""
        return FusedLayer.backward(ctx, *grads)
