"""Calls of a fused kernel's two passes, as operators only where something observes operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rnnorm.kernels import second_derivative
from rnnorm.kernels.inputs import DIFFERENTIABLE, LEAVES, Gradients, Inputs, Options, Results
from rnnorm.kernels.operators import (
    CHANGED,
    SAVED_NAMES,
    for_backward,
    gradients,
    save,
    saved,
    saved_or_run_again,
    saved_parts,
    setup_forward,
)
from rnnorm.norm.merged_moments import ActiveRows
from rnnorm.tracing import never_compiled, unobserved


class Passes(NamedTuple):
    """The two passes of a kernel.

    Args:
        forward: the forward pass without autograd, called with inputs, options, whether a backward
            pass follows, and the active rows of all ranks or None for this process alone.
        backward: the backward pass without autograd, called with inputs, results, the gradients of
            output, h_n, c_n and all_c, options, whether the gradient of x is wanted,
            and the active rows as for ``forward``.
        forward_operator: the forward pass as a custom operator.
        backward_operator: the backward pass as a custom operator.
        takes_all_c: whether the backward pass takes the gradient of all_c; else the reference does.
    """

    forward: Callable[[Inputs, Options, bool, ActiveRows | None], Results]
    backward: Callable[..., Gradients]
    forward_operator: Any
    backward_operator: Any
    takes_all_c: bool = True

    def make_differentiable(self) -> None:
        """Register the derivative of the forward operator."""

        def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
            inputs, results = saved_or_run_again(ctx, self.forward_operator)
            found = self.gradients(ctx, inputs, results, grads[: len(DIFFERENTIABLE)])
            return (*found, *[None] * (len(ctx.needs_input_grad) - LEAVES))

        self.forward_operator.register_autograd(backward, setup_context=setup_forward)

    def gradients(
        self,
        ctx: Any,
        inputs: Inputs,
        results: Results,
        grads: Sequence[Tensor | None],
        rows: ActiveRows | None = None,
    ) -> list[Tensor | None]:
        """Return the gradients of the leaves, by the operator if something observes operators.

        The reference computes them where the kernel does not take the gradient of all_c.
        """
        # statistics of several processes have no second derivative, which needs the operator
        as_operator = rows is None and (
            torch.is_grad_enabled() or not unobserved((*inputs, *results, *grads))
        )
        backward: Callable[..., Gradients] = partial(self.backward, rows=rows)
        of_all_c = grads[-1] if ctx.options.wants_all_c else None
        if of_all_c is not None and not self.takes_all_c:
            backward = second_derivative.backward
        elif as_operator:
            backward = self._call_backward_operator
        return gradients(ctx, inputs, results, grads, backward)

    def _call_backward_operator(
        self,
        inputs: Inputs,
        results: Results,
        upstream: Sequence[Tensor | None],
        options: Options,
        wants_x: bool,
    ) -> Gradients:
        """Call the backward operator with the arguments of ``backward``."""
        return Gradients(*self.backward_operator(*inputs, *results, *upstream, *options, wants_x))

    def __call__(self, inputs: Inputs, options: Options, rows: ActiveRows | None = None) -> Results:
        """Run the forward pass, recorded by autograd where it must be."""
        held = [t for t in inputs if t is not None]
        differentiable = torch.is_grad_enabled() and any([t.requires_grad for t in held])
        if rows is None and not unobserved(held):
            return Results(*self.forward_operator(*inputs, *options, differentiable))
        if any(map(Tensor.is_neg, held)) or any(map(Tensor._is_zerotensor, held)):
            # before an operator PyTorch resolves them itself
            inputs = Inputs._make([None if t is None else _with_memory(t) for t in inputs])
        if not differentiable:
            return self.forward(inputs, options, False, rows)
        others: list[Tensor] = []
        function = FusedLayer if rows is None else SynchronizedFusedLayer
        first = function.apply(  # type: ignore[no-untyped-call]
            *inputs.leaves, inputs.without_gradients, options, self, rows, others
        )
        return Results._make((*first, *others))


def _with_memory(tensor: Tensor) -> Tensor:
    """Return a tensor whose memory holds its numbers; a tensor of zeros may have no memory."""
    return tensor.clone() if tensor._is_zerotensor() else tensor.resolve_neg()


class FusedLayer(torch.autograd.Function):
    """A kernel's passes without the dispatch of operators, which costs more than a short sequence.

    It is used only where nothing observes operators. Its arguments are the leaves, the other
    inputs, the options, the passes, the active rows of all ranks or None, and a list for the
    other results, which as outputs would cost more; it returns output, h_n, c_n and, if it is
    wanted, all_c.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        """Run the forward pass."""
        *leaves, rest, ctx.options, ctx.passes, ctx.rows, others = arguments
        inputs = Inputs(*leaves, *rest)
        results = ctx.passes.forward(inputs, ctx.options, True, ctx.rows)
        save(ctx, (*inputs, *for_backward(results)))
        ctx.sizes = inputs.sizes.tolist()
        ctx.set_materialize_grads(False)
        wanted = len(DIFFERENTIABLE) - (not ctx.options.wants_all_c)
        others += results[wanted:]
        return results[:wanted]

    @staticmethod
    # a compiled function that calls loss.backward() would trace it
    @never_compiled
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """Run the backward pass.

        Raises:
            RuntimeError: if a saved tensor or the gradient of a result has another form than in
                the forward pass, or ``sizes`` has other numbers.
        """
        inputs, results = saved_parts(saved(ctx, SAVED_NAMES))
        if (sizes := inputs.sizes.tolist()) != ctx.sizes:
            raise RuntimeError(
                f"sizes were saved for the backward pass as {ctx.sizes}, and came back as {sizes}: "
                f"{CHANGED}"
            )
        grads = grads if ctx.options.wants_all_c else (*grads, None)
        return (*ctx.passes.gradients(ctx, inputs, results, grads, ctx.rows), *[None] * 5)


class SynchronizedFusedLayer(FusedLayer):
    """A fused layer whose statistics are over the rows of several processes."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """Run the backward pass, which has no derivative."""
        return FusedLayer.backward(ctx, *grads)
