"""The forward pass as a custom operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rnnorm.kernels.autograd import Passes
from rnnorm.kernels.cpu.backward import cpu_backward, run_backward
from rnnorm.kernels.cpu.c_struct import COMPUTED, describe, forward_shapes
from rnnorm.kernels.cpu.library import run
from rnnorm.kernels.cpu.rank_exchange import Exchange
from rnnorm.kernels.inputs import Inputs, Options, check_call, moments_of
from rnnorm.kernels.operators import FORWARD, contiguous, forward_parts
from rnnorm.norm.merged_moments import ActiveRows


def run_forward(
    inputs: Inputs,
    options: Options,
    save: bool,
    rows: ActiveRows | None = None,
    distinct: bool = False,
) -> tuple[Tensor, ...]:
    """Runs the pass, without autograd.

    Args:
        inputs: of both passes.
        options: of both passes.
        save: whether backward follows.
        rows: those of all ranks, if statistics are taken of them.
        distinct: whether each result that is absent is a tensor of its own, as an operator's are.

    Returns:
        see ``problem.forward_shapes``.

    Raises:
        MemoryError: scratch memory could not be allocated.
        RuntimeError: torch.distributed's own, where another rank is missing.
    """
    results = _allocate(inputs, options, save, distinct, rows is not None)
    exchange = None
    if rows is not None:
        exchange = Exchange(rows, moments_of(results), backward=False)
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
    inputs, options, save = forward_parts(contiguous(arguments))
    check_call(inputs, options, COMPUTED)
    return run_forward(inputs, options, save, distinct=True)


@cpu_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    return _allocate(*forward_parts(arguments), distinct=True)


#: both passes
PASSES = Passes(run_forward, run_backward, cpu_forward, cpu_backward)
PASSES.make_differentiable()
