"""The backward pass as a custom operator, whose own derivative runs the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rnnorm.kernels import again
from rnnorm.kernels.cpu.exchange import Exchange
from rnnorm.kernels.cpu.library import address, run
from rnnorm.kernels.cpu.problem import describe
from rnnorm.kernels.inputs import LEAVES, Inputs, Options
from rnnorm.norm.merged_moments import ActiveRows

Gradients = tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
]  # fmt: skip

# of the results, then of the inputs
_GRADIENTS = [f"grad_{name}" for name in ("output", "h_n", "c_n", "x", "h0", "c0")]
_GRADIENTS += [f"grad_{name}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]

# where the arguments that are no inputs begin
_RESULTS = len(Inputs._fields)
_UPSTREAM = _RESULTS + 13
_OPTIONS = _UPSTREAM + 3


def _parts(arguments: Sequence[Any]) -> tuple[Inputs, Any, Any, Options, bool]:
    """Inputs, results of the forward pass, their gradients, options, whether x's is wanted."""
    return (
        Inputs(*arguments[:_RESULTS]),
        arguments[_RESULTS:_UPSTREAM],
        arguments[_UPSTREAM:_OPTIONS],
        Options(*arguments[_OPTIONS:-1]),
        arguments[-1],
    )


def run_backward(*arguments: Any, rows: ActiveRows | None = None) -> Gradients:
    """Runs the pass, without autograd, on the arguments of ``cpu_backward``.

    Args:
        *arguments: those of ``cpu_backward``.
        rows: those of all ranks, if statistics were taken of them.

    Raises:
        MemoryError: scratch memory could not be allocated.
        RuntimeError: torch.distributed's own, where another rank is missing.
    """
    inputs, results, upstream, options, wants_x = _parts(arguments)
    grads = _allocate(inputs, wants_x)
    if wants_x and int(inputs.sizes[-1]) < inputs.x.size(1):
        grads[0].zero_()
    layer = describe(inputs, options, results)
    for name, tensor in zip(_GRADIENTS, (*upstream, *grads[:7]), strict=True):
        setattr(layer, name, address(tensor))
    for k, grad in enumerate(grads[7:10]):
        layer.grad_peephole[k] = address(grad)
    for site, grad in zip(layer.site, grads[10:13], strict=True):
        site.grad_gamma = address(grad)
    layer.site[2].grad_beta = address(grads[13])
    exchange = None
    if rows is not None:
        means = results[3:9:2]
        sums = [mean.new_empty(len(mean), 2, *mean.shape[1:]) for mean in means]
        for site, each in zip(layer.site, sums, strict=True):
            site.sums = address(each)
        exchange = Exchange(rows, [each.unbind(1) for each in sums], backward=True)
    run("rnnorm_backward", layer, exchange)
    return grads


@torch.library.custom_op("rnnorm::cpu_backward", mutates_args=(), device_types="cpu")
def cpu_backward(
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
    output: Tensor,
    h_n: Tensor,
    c_n: Tensor,
    taken_mean_input: Tensor,
    taken_var_input: Tensor,
    taken_mean_hidden: Tensor,
    taken_var_hidden: Tensor,
    taken_mean_cell: Tensor,
    taken_var_cell: Tensor,
    saved_x: Tensor,
    saved_h: Tensor,
    saved_c: Tensor,
    saved_carried: Tensor,
    grad_output: Tensor | None,
    grad_h_n: Tensor | None,
    grad_c_n: Tensor | None,
    cell: str,
    scopes: str,
    joint: bool,
    eps: float,
    min_rows: int,
    scale_hidden: float,
    scale_candidate: float,
    scale_zoneout_h: float,
    scale_zoneout_c: float,
    wants_x: bool,
) -> tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
]:  # fmt: skip
    """Gradients of x, h0, c0, the weights, biases, peepholes, gammas and the cell's beta.

    The arguments are those of ``Inputs``, the results of the forward pass and their gradients,
    then ``Options``, then whether the gradient of x is wanted. What is absent has no elements.
    """
    return run_backward(
        x, sizes, h0, c0, weight_ih, weight_hh, bias_ih, bias_hh,
        weight_ci, weight_cf, weight_co, gamma_input, gamma_hidden, gamma_cell,
        beta_cell, mean_input, var_input, mean_hidden, var_hidden, mean_cell, var_cell,
        mask_hidden, mask_candidate, mask_zoneout_h, mask_zoneout_c,
        output, h_n, c_n,
        taken_mean_input, taken_var_input, taken_mean_hidden, taken_var_hidden, taken_mean_cell,
        taken_var_cell, saved_x, saved_h, saved_c, saved_carried, grad_output, grad_h_n, grad_c_n,
        cell, scopes, joint, eps, min_rows,
        scale_hidden, scale_candidate, scale_zoneout_h, scale_zoneout_c, wants_x,
    )  # fmt: skip


def _allocate(inputs: Inputs, wants_x: bool) -> Gradients:
    like = (inputs.x if wants_x else None, *inputs[2:LEAVES])
    return tuple(  # type: ignore[return-value]
        inputs.x.new_empty(0) if tensor is None else torch.empty_like(tensor) for tensor in like
    )


@cpu_backward.register_fake
def _(*arguments: Any) -> Gradients:
    return _allocate(Inputs(*arguments[:_RESULTS]), arguments[-1])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Gradients) -> None:
    given, _, upstream, ctx.options, _ = _parts(inputs)
    ctx.save_for_backward(*given, *upstream)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    inputs, grad_results = Inputs(*tensors[:_RESULTS]), tensors[_RESULTS:]
    back = again.differentiate(inputs, ctx.options, grad_results, grads)
    absent = [None] * (_UPSTREAM - LEAVES)
    return (*back[:LEAVES], *absent, *back[LEAVES:], *[None] * (len(Options._fields) + 1))


cpu_backward.register_autograd(_backward, setup_context=_setup_context)
