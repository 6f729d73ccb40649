"""The backward pass as a custom operator, whose own derivative runs the reference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rnnorm.kernels.cpu.c_struct import COMPUTED, describe, forward_shapes
from rnnorm.kernels.cpu.library import address, run
from rnnorm.kernels.cpu.rank_exchange import Exchange
from rnnorm.kernels.inputs import check_call, moments_of
from rnnorm.kernels.operators import (
    BACKWARD,
    allocate_gradients,
    backward_parts,
    check_results,
    contiguous,
    differentiate,
    setup_backward,
)
from rnnorm.norm.merged_moments import ActiveRows

# of the results, then of the inputs
_GRADIENTS = [f"grad_{name}" for name in ("output", "h_n", "c_n", "x", "h0", "c0")]
_GRADIENTS += [f"grad_{name}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]


def run_backward(*arguments: Any, rows: ActiveRows | None = None) -> tuple[Tensor, ...]:
    """Runs the pass, without autograd, on the arguments of ``cpu_backward``.

    Args:
        *arguments: those of ``cpu_backward``.
        rows: those of all ranks, if statistics were taken of them.

    Raises:
        MemoryError: scratch memory could not be allocated.
        RuntimeError: torch.distributed's own, where another rank is missing.
    """
    inputs, results, upstream, options, wants_x = backward_parts(arguments)
    grads = allocate_gradients(*arguments)
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
        moments = moments_of(results)
        sums = [mean.new_empty(len(mean), 2, *mean.shape[1:]) for mean, _ in moments]
        for site, each in zip(layer.site, sums, strict=True):
            site.sums = address(each)
        exchange = Exchange(rows, [each.unbind(1) for each in sums], backward=True)
    run("rnnorm_backward", layer, exchange)
    return grads


@torch.library.custom_op(
    "rnnorm::cpu_backward", mutates_args=(), device_types="cpu", schema=BACKWARD
)
def cpu_backward(*arguments: Any) -> tuple[Tensor, ...]:
    """Gradients of x, h0, c0, the weights, biases, peepholes, gammas and the cell's beta."""
    arguments = contiguous(arguments)
    inputs, _, _, options, _ = backward_parts(arguments)
    check_call(inputs, options, COMPUTED)
    shapes = forward_shapes(inputs, options, True)
    check_results(arguments, [(shape, inputs.x.dtype) for shape in shapes])
    return run_backward(*arguments)


cpu_backward.register_fake(allocate_gradients)
cpu_backward.register_autograd(differentiate, setup_context=setup_backward)
