"""The backward pass as a custom operator, whose derivative is computed by the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rnnorm.kernels.call_inputs import check_call
from rnnorm.kernels.cpu.c_struct import (
    MULTIPLIED,
    describe,
    forward_shapes,
    widened,
    write_addresses,
)
from rnnorm.kernels.cpu.library import run
from rnnorm.kernels.cpu.rank_exchange import Exchange
from rnnorm.kernels.inputs import DIFFERENTIABLE, Gradients, Inputs, Options, Results
from rnnorm.kernels.operators import (
    BACKWARD,
    allocate_gradients,
    backward_parts,
    check_results,
    contiguous,
    differentiate,
    fake_backward,
    setup_backward,
)
from rnnorm.norm.merged_moments import ActiveRows

#: names of the gradients that the library is given and returns, all but the last, of weight_hr
GRADIENTS = tuple([f"grad_{name}" for name in (*DIFFERENTIABLE, *Gradients._fields[:-1])])


def run_backward(
    inputs: Inputs,
    results: Results,
    upstream: Sequence[Tensor | None],
    options: Options,
    wants_x: bool,
    rows: ActiveRows | None = None,
) -> Gradients:
    """Run the backward pass, without autograd.

    Args:
        inputs: inputs of the forward pass.
        results: results of the forward pass.
        upstream: gradients of output, h_n, c_n and all_c.
        options: options of the forward pass.
        wants_x: whether the gradient of x is wanted.
        rows: the active rows of all ranks, if statistics were taken over these.

    Raises:
        MemoryError: if scratch memory could not be allocated.
        RuntimeError: if another rank is missing (raised by torch.distributed).
    """
    given, inputs = inputs, widened(inputs, options)
    grads = allocate_gradients(inputs, wants_x)
    if wants_x and int(inputs.sizes[-1]) < inputs.x.size(1):
        grads.x.zero_()
    layer = describe(inputs, options, results)
    write_addresses(layer, GRADIENTS, (*upstream, *grads[:-1]))
    weight_hr, exchange = inputs.weight_hr, None
    if weight_hr is not None:
        frames = int(inputs.sizes.sum())
        projected = inputs.h0.new_empty(frames, len(weight_hr))
        layer.grad_projected = projected.data_ptr()
    if rows is not None:
        sums = [mean.new_empty(len(mean), 2, *mean.shape[1:]) for mean, _ in results.moments]
        for site, each in zip(layer.site, sums, strict=True):
            site.sums = each.data_ptr()
        exchange = Exchange(rows, [each.unbind(1) for each in sums], backward=True)
    run("rnnorm_backward", layer, exchange)
    if weight_hr is not None:
        product = projected.t() @ results.saved_made[:frames]
        grads = grads._replace(weight_hr=product.to(weight_hr.dtype))
    if given is inputs:
        return grads
    dtype = given.x.dtype
    return grads._replace(
        x=grads.x.to(dtype),
        weight_ih=grads.weight_ih.to(dtype),
        weight_hh=grads.weight_hh.to(dtype),
        weight_hr=grads.weight_hr.to(dtype),
    )


@torch.library.custom_op(
    "rnnorm::cpu_backward", mutates_args=(), device_types="cpu", schema=BACKWARD
)
def cpu_backward(*arguments: Any) -> tuple[Tensor, ...]:
    """Return the gradients of x, h0, c0, weights, biases, peepholes, gammas and the cell's beta."""
    parts = inputs, results, upstream, options, _ = backward_parts(contiguous(arguments))
    check_call(inputs, options, MULTIPLIED, projected=True)
    shapes = forward_shapes(inputs, options, True)
    check_results(inputs, results, upstream, [(shape, inputs.h0.dtype) for shape in shapes])
    return tuple(run_backward(*parts))


cpu_backward.register_fake(fake_backward)
cpu_backward.register_autograd(differentiate, setup_context=setup_backward)
