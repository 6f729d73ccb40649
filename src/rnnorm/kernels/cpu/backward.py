"""The backward pass as a custom operator, whose own derivative runs the reference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rnnorm.kernels.cpu import again
from rnnorm.kernels.cpu.library import address, run
from rnnorm.kernels.cpu.problem import Inputs, Options, describe

Gradients = tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor
]

# of the results, then of the inputs
_GRADIENTS = [f"grad_{name}" for name in ("output", "h_n", "c_n", "x", "h0", "c0")]
_GRADIENTS += [f"grad_{name}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]


def run_backward(*arguments: Any) -> Gradients:
    """Runs the pass, without autograd, on the arguments of ``cpu_backward``.

    Raises:
        MemoryError: scratch memory could not be allocated.
    """
    inputs, results, wants_x = Inputs(*arguments[:18]), arguments[18:30], arguments[38]
    grads = _allocate(inputs, wants_x)
    if wants_x and int(inputs.sizes[-1]) < inputs.x.size(1):
        grads[0].zero_()
    layer = describe(inputs, Options(*arguments[33:38]), results)
    for name, tensor in zip(_GRADIENTS, (*arguments[30:33], *grads[:7]), strict=True):
        setattr(layer, name, address(tensor))
    for site, grad in zip(layer.site, grads[7:10], strict=True):
        site.grad_gamma = address(grad)
    layer.site[2].grad_beta = address(grads[10])
    run("rnnorm_backward", layer)
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
    grad_output: Tensor | None,
    grad_h_n: Tensor | None,
    grad_c_n: Tensor | None,
    cell: str,
    scopes: str,
    joint: bool,
    eps: float,
    min_rows: int,
    wants_x: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, h0, c0, the weights, biases, gammas and the cell's beta.

    The arguments are those of ``Inputs``, the results of the forward pass and their gradients,
    then ``Options``, then whether the gradient of x is wanted. What is absent has no elements.
    """
    return run_backward(
        x, sizes, h0, c0, weight_ih, weight_hh, bias_ih, bias_hh,
        gamma_input, gamma_hidden, gamma_cell, beta_cell,
        mean_input, var_input, mean_hidden, var_hidden, mean_cell, var_cell,
        output, h_n, c_n,
        taken_mean_input, taken_var_input, taken_mean_hidden, taken_var_hidden, taken_mean_cell,
        taken_var_cell, saved_x, saved_h, saved_c, grad_output, grad_h_n, grad_c_n,
        cell, scopes, joint, eps, min_rows, wants_x,
    )  # fmt: skip


def _allocate(inputs: Inputs, wants_x: bool) -> Gradients:
    like = (inputs.x if wants_x else None, *inputs[2:12])
    return tuple(  # type: ignore[return-value]
        inputs.x.new_empty(0) if tensor is None else torch.empty_like(tensor) for tensor in like
    )


@cpu_backward.register_fake
def _(*arguments: Any) -> Gradients:
    return _allocate(Inputs(*arguments[:18]), arguments[-1])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Gradients) -> None:
    ctx.save_for_backward(*inputs[:18], *inputs[30:33])
    *options, ctx.wants_x = inputs[33:]
    ctx.options = Options(*options)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    inputs, grad_results = Inputs(*tensors[:18]), tensors[18:]
    back = again.differentiate(inputs, ctx.options, grad_results, grads)
    return (*back[:12], *[None] * 18, *back[12:], *[None] * 6)


cpu_backward.register_autograd(_backward, setup_context=_setup_context)
