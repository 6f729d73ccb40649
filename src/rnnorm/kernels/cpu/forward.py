"""The forward pass as a custom operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rnnorm.kernels.cpu.backward import cpu_backward, run_backward
from rnnorm.kernels.cpu.library import run
from rnnorm.kernels.cpu.problem import Inputs, Options, describe, forward_shapes
from rnnorm.tracing import unobserved

Results = tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor
]


def run_forward(inputs: Inputs, options: Options, save: bool, distinct: bool = True) -> Results:
    """Runs the pass, without autograd.

    Args:
        inputs: of both passes.
        options: of both passes.
        save: whether backward follows.
        distinct: whether each result that is absent is a tensor of its own, as an operator's are.

    Returns:
        see ``problem.forward_shapes``.

    Raises:
        MemoryError: scratch memory could not be allocated.
    """
    results = _allocate(inputs, options, save, distinct)
    run("rnnorm_forward", describe(inputs, options, results))
    return results


def _allocate(inputs: Inputs, options: Options, save: bool, distinct: bool = True) -> Results:
    new_empty, new_zeros = inputs.x.new_empty, inputs.x.new_zeros
    absent = None if distinct else new_empty(0)
    # a moment stays zero where no statistic is taken
    return tuple(  # type: ignore[return-value]
        absent
        if absent is not None and shape == (0,)
        else (new_zeros(shape) if 3 <= k < 9 else new_empty(shape))
        for k, shape in enumerate(forward_shapes(inputs, options, save))
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
    cell: str,
    scopes: str,
    joint: bool,
    eps: float,
    min_rows: int,
    save: bool,
) -> tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor
]:
    """The arguments are those of ``Inputs``, then ``Options``, then whether backward follows."""
    inputs = Inputs(
        x, sizes, h0, c0, weight_ih, weight_hh, bias_ih, bias_hh,
        gamma_input, gamma_hidden, gamma_cell, beta_cell,
        mean_input, var_input, mean_hidden, var_hidden, mean_cell, var_cell,
    )  # fmt: skip
    return run_forward(inputs, Options(cell, scopes, joint, eps, min_rows), save)


@cpu_forward.register_fake
def _(*arguments: Any) -> Results:
    return _allocate(Inputs(*arguments[:18]), Options(*arguments[18:23]), arguments[23])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    *ctx.options, ctx.saved = inputs[18:]
    ctx.save_for_backward(*inputs[:18], *output)
    ctx.mark_non_differentiable(*output[3:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    grads = tuple(None if g is None else g.contiguous() for g in grads[:3])
    observed = not unobserved((*tensors, *grads))
    if not ctx.saved:
        # a graph captured without gradients asks for none to be saved
        with torch.no_grad():
            forward = cpu_forward(*tensors[:18], *ctx.options, True)
        tensors = (*tensors[:18], *forward)
    # only a second derivative needs the operator
    run = cpu_backward if torch.is_grad_enabled() or observed else run_backward
    results = run(*tensors, *grads, *ctx.options, ctx.needs_input_grad[0])
    wanted = [
        result if ctx.needs_input_grad[position] else None
        for result, position in zip(results, (0, *range(2, 12)), strict=True)
    ]
    return (wanted[0], None, *wanted[1:], *[None] * 12)


cpu_forward.register_autograd(_backward, setup_context=_setup_context)


class Unobserved(torch.autograd.Function):
    """``cpu_forward`` with ``save=True``, without the operator's dispatch.

    That takes longer than a short sequence does. Only where nothing would see the operator.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Results:  # noqa: D102
        results = run_forward(Inputs(*arguments[:18]), Options(*arguments[18:23]), save=True)
        _setup_context(ctx, arguments, results)
        return results

    backward = staticmethod(_backward)
