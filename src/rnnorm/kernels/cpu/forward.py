"""The forward pass as a custom operator."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rnnorm.kernels.cpu.backward import cpu_backward, run_backward
from rnnorm.kernels.cpu.exchange import Exchange
from rnnorm.kernels.cpu.library import run
from rnnorm.kernels.cpu.problem import describe, forward_shapes
from rnnorm.kernels.inputs import LEAVES, Inputs, Options
from rnnorm.kernels.operators import (
    FORWARD,
    contiguous,
    for_backward,
    forward_parts,
    gradients,
    saved,
    setup_forward,
)
from rnnorm.norm.merged_moments import ActiveRows
from rnnorm.tracing import unobserved


def run_forward(
    inputs: Inputs,
    options: Options,
    save: bool,
    distinct: bool = False,
    rows: ActiveRows | None = None,
) -> tuple[Tensor, ...]:
    """Runs the pass, without autograd.

    Args:
        inputs: of both passes.
        options: of both passes.
        save: whether backward follows.
        distinct: whether each result that is absent is a tensor of its own, as an operator's are.
        rows: those of all ranks, if statistics are taken of them.

    Returns:
        see ``problem.forward_shapes``.

    Raises:
        MemoryError: scratch memory could not be allocated.
        RuntimeError: torch.distributed's own, where another rank is missing.
    """
    results = _allocate(inputs, options, save, distinct, rows is not None)
    exchange = None
    if rows is not None:
        moments = list(zip(results[3:9:2], results[4:9:2], strict=True))
        exchange = Exchange(rows, moments, backward=False)
    run("rnnorm_forward", describe(inputs, options, results), exchange)
    return results


def _allocate(
    inputs: Inputs, options: Options, save: bool, distinct: bool, exchanged: bool = False
) -> tuple[Tensor, ...]:
    new_empty, new_zeros = inputs.x.new_empty, inputs.x.new_zeros
    absent = new_empty(0)
    # a moment stays zero where no statistic is taken
    return tuple(
        [
            absent
            if not distinct and shape == (0,)
            else (new_zeros(shape) if 3 <= k < 9 else new_empty(shape))
            for k, shape in enumerate(forward_shapes(inputs, options, save, exchanged))
        ]
    )


@torch.library.custom_op("rnnorm::cpu_forward", mutates_args=(), device_types="cpu", schema=FORWARD)
def cpu_forward(*arguments: Any) -> tuple[Tensor, ...]:
    """The arguments are those of ``Inputs``, then ``Options``, then whether backward follows."""
    return run_forward(*forward_parts(contiguous(arguments)), distinct=True)


@cpu_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    return _allocate(*forward_parts(arguments), distinct=True)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    found = _gradients(ctx, saved(ctx, cpu_forward), grads)
    return (*found, *[None] * (len(ctx.needs_input_grad) - LEAVES))


def _gradients(
    ctx: Any,
    tensors: tuple[Any, ...],
    grads: tuple[Tensor | None, ...],
    rows: ActiveRows | None = None,
) -> list[Tensor | None]:
    """By the operator where something may see it."""
    # only a second derivative needs the operator, which has no exchange
    as_operator = rows is None and (
        torch.is_grad_enabled() or not unobserved((*tensors, *grads[:3]))
    )
    backward = cpu_backward if as_operator else partial(run_backward, rows=rows)
    return gradients(ctx, tensors, grads, backward)


cpu_forward.register_autograd(_backward, setup_context=setup_forward)


class Unobserved(torch.autograd.Function):
    """``cpu_forward`` with ``save=True``, without the operator's dispatch.

    That takes longer than a short sequence does. Only where nothing would see the operator.
    Takes the inputs that may have gradients, the others, the options, the active rows of all
    ranks or None, and a list for the moments, which as outputs would cost more; returns output,
    h_n and c_n.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:  # noqa: D102
        *first, rest, ctx.options, ctx.rows, moments = arguments
        inputs = Inputs(*first, *rest)
        results = run_forward(inputs, ctx.options, save=True, rows=ctx.rows)
        ctx.save_for_backward(*inputs, *for_backward(results))
        ctx.set_materialize_grads(False)
        moments += results[3:9]
        return results[:3]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # noqa: D102
        tensors = contiguous(ctx.saved_tensors)
        return (*_gradients(ctx, tensors, grads, ctx.rows), None, None, None, None)


class Synchronized(Unobserved):
    """Likewise with statistics of the rows of several processes, which nothing may look into."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # noqa: D102
        return Unobserved.backward(ctx, *grads)
