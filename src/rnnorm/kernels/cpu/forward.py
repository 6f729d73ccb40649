"""The forward pass as a custom operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rnnorm.kernels.cpu.backward import cpu_backward, run_backward
from rnnorm.kernels.cpu.exchange import Exchange
from rnnorm.kernels.cpu.library import run
from rnnorm.kernels.cpu.problem import describe, forward_shapes
from rnnorm.kernels.inputs import LEAVES, Inputs, Options
from rnnorm.norm.merged_moments import ActiveRows
from rnnorm.tracing import unobserved

Results = tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
]  # fmt: skip

_COUNT = len(Inputs._fields)


def run_forward(
    inputs: Inputs,
    options: Options,
    save: bool,
    distinct: bool = False,
    rows: ActiveRows | None = None,
) -> Results:
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
) -> Results:
    new_empty, new_zeros = inputs.x.new_empty, inputs.x.new_zeros
    absent = new_empty(0)
    # a moment stays zero where no statistic is taken
    return tuple(  # type: ignore[return-value]
        [
            absent
            if not distinct and shape == (0,)
            else (new_zeros(shape) if 3 <= k < 9 else new_empty(shape))
            for k, shape in enumerate(forward_shapes(inputs, options, save, exchanged))
        ]
    )


@torch.library.custom_op("rnnorm::cpu_forward", mutates_args=(), device_types="cpu")
def cpu_forward(
    x: Tensor,
    sizes: Tensor,
    h0: Tensor,
    c0: Tensor | None,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    weight_ci: Tensor | None,
    weight_cf: Tensor | None,
    weight_co: Tensor | None,
    gamma_input: Tensor | None,
    gamma_hidden: Tensor | None,
    gamma_cell: Tensor | None,
    beta_cell: Tensor | None,
    mean_input: Tensor | None,
    var_input: Tensor | None,
    mean_hidden: Tensor | None,
    var_hidden: Tensor | None,
    mean_cell: Tensor | None,
    var_cell: Tensor | None,
    mask_hidden: Tensor | None,
    mask_candidate: Tensor | None,
    mask_zoneout_h: Tensor | None,
    mask_zoneout_c: Tensor | None,
    cell: str,
    scopes: str,
    joint: bool,
    eps: float,
    min_rows: int,
    scale_hidden: float,
    scale_candidate: float,
    scale_zoneout_h: float,
    scale_zoneout_c: float,
    save: bool,
) -> tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
]:  # fmt: skip
    """The arguments are those of ``Inputs``, then ``Options``, then whether backward follows."""
    inputs = Inputs(
        x, sizes, h0, c0, weight_ih, weight_hh, bias_ih, bias_hh,
        weight_ci, weight_cf, weight_co, gamma_input, gamma_hidden, gamma_cell, beta_cell,
        mean_input, var_input, mean_hidden, var_hidden, mean_cell, var_cell,
        mask_hidden, mask_candidate, mask_zoneout_h, mask_zoneout_c,
    )  # fmt: skip
    options = Options(
        cell, scopes, joint, eps, min_rows,
        scale_hidden, scale_candidate, scale_zoneout_h, scale_zoneout_c,
    )  # fmt: skip
    return run_forward(inputs, options, save, distinct=True)


@cpu_forward.register_fake
def _(*arguments: Any) -> Results:
    inputs, options = Inputs(*arguments[:_COUNT]), Options(*arguments[_COUNT:-1])
    return _allocate(inputs, options, arguments[-1], distinct=True)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    *options, ctx.saved = inputs[_COUNT:]
    ctx.options, ctx.rows = Options(*options), None
    ctx.save_for_backward(*inputs[:_COUNT], *output)
    ctx.mark_non_differentiable(*output[3:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    if not ctx.saved:
        # a graph captured without gradients asks for none to be saved
        with torch.no_grad():
            forward = cpu_forward(*tensors[:_COUNT], *ctx.options, True)
        tensors = (*tensors[:_COUNT], *forward)
    rest = _COUNT - LEAVES + len(Options._fields) + 1
    return (*_gradients(ctx, tensors, grads), *[None] * rest)


def _gradients(
    ctx: Any, tensors: tuple[Any, ...], grads: tuple[Tensor | None, ...]
) -> list[Tensor | None]:
    """Of the inputs that may have them, from inputs and results and the gradients of the latter."""
    upstream = [None if g is None else g.contiguous() for g in grads[:3]]
    wanted = ctx.needs_input_grad
    arguments = (*tensors, *upstream, *ctx.options, wanted[0])
    # only a second derivative needs the operator, which has no exchange
    if ctx.rows is None and (torch.is_grad_enabled() or not unobserved((*tensors, *upstream))):
        found = cpu_backward(*arguments)
    else:
        found = run_backward(*arguments, rows=ctx.rows)
    # sizes have none
    found = (found[0], None, *found[1:])
    return [grad if wants else None for grad, wants in zip(found, wanted, strict=False)]


cpu_forward.register_autograd(_backward, setup_context=_setup_context)


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
        ctx.save_for_backward(*inputs, *results)
        ctx.set_materialize_grads(False)
        moments += results[3:9]
        return results[:3]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # noqa: D102
        return (*_gradients(ctx, ctx.saved_tensors, grads), None, None, None, None)


class Synchronized(Unobserved):
    """Likewise with statistics of the rows of several processes, which nothing may look into."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # noqa: D102
        return Unobserved.backward(ctx, *grads)
