"""The forward pass as a custom operator."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from rnnorm.kernels.autograd import Passes
from rnnorm.kernels.call_inputs import check_call
from rnnorm.kernels.cpu.backward import cpu_backward, run_backward
from rnnorm.kernels.cpu.c_struct import MULTIPLIED, describe, forward_shapes, widened
from rnnorm.kernels.cpu.library import run
from rnnorm.kernels.cpu.rank_exchange import Exchange
from rnnorm.kernels.inputs import RESULTS, Inputs, Options, Results
from rnnorm.kernels.operators import FORWARD, contiguous, forward_parts
from rnnorm.norm.merged_moments import ActiveRows


def run_forward(
    inputs: Inputs,
    options: Options,
    save: bool,
    rows: ActiveRows | None = None,
    distinct: bool = False,
    narrow: bool = False,
) -> Results:
    """Run the forward pass, without autograd.

    Args:
        inputs: inputs of both passes.
        options: options of both passes.
        save: whether a backward pass follows.
        rows: the active rows of all ranks, if statistics are taken over these.
        distinct: whether each absent result is a separate tensor, as an operator's must be.
        narrow: whether the output may have the dtype of x if no backward pass follows.

    Returns:
        tensors of the shapes that ``c_struct.forward_shapes`` lists.

    Raises:
        MemoryError: if scratch memory could not be allocated.
        RuntimeError: if another rank is missing (raised by torch.distributed).
    """
    results = allocate(inputs, options, save, distinct, rows is not None)
    inputs = widened(inputs, options)
    if narrow and not save and inputs.x.dtype != results.output.dtype:
        results = results._replace(output=inputs.x.new_empty(results.output.shape))
    exchange = None
    if rows is not None:
        exchange = Exchange(rows, results.moments, backward=False)
    run("rnnorm_forward", describe(inputs, options, results), exchange)
    return results


# a moment stays zero where no statistic is taken
_ZEROED = [name.startswith("taken_") for name in RESULTS]


def allocate(
    inputs: Inputs, options: Options, save: bool, distinct: bool, exchanged: bool = False
) -> Results:
    """Return the results of a forward pass before it has run."""
    new_empty, new_zeros = inputs.h0.new_empty, inputs.h0.new_zeros
    absent, shapes = new_empty(0), forward_shapes(inputs, options, save, exchanged)
    return Results._make(
        [
            absent
            if not distinct and shape == (0,)
            else (new_zeros(shape) if zeroed else new_empty(shape))
            for zeroed, shape in zip(_ZEROED, shapes, strict=True)
        ]
    )


@torch.library.custom_op("rnnorm::cpu_forward", mutates_args=(), device_types="cpu", schema=FORWARD)
def cpu_forward(*arguments: Any) -> tuple[Tensor, ...]:
    """Run the forward pass on ``Inputs``, ``Options`` and whether a backward pass follows."""
    inputs, options, save = forward_parts(contiguous(arguments))
    check_call(inputs, options, MULTIPLIED, projected=True)
    return tuple(run_forward(inputs, options, save, distinct=True))


@cpu_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    return tuple(allocate(*forward_parts(arguments), distinct=True))


#: both passes of the CPU kernel
PASSES = Passes(run_forward, run_backward, cpu_forward, cpu_backward)
PASSES.make_differentiable()
#: both passes, with an output in the dtype of x if nothing observes or differentiates the call
NARROW_PASSES = PASSES._replace(forward=partial(run_forward, narrow=True))
