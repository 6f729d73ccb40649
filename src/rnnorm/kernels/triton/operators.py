"""Both passes as custom operators; the derivative of the second runs the reference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rnnorm.kernels.autograd import Passes
from rnnorm.kernels.call import DTYPES
from rnnorm.kernels.inputs import Inputs, Options, check_call
from rnnorm.kernels.operators import (
    BACKWARD,
    FORWARD,
    allocate_gradients,
    backward_parts,
    check_results,
    contiguous,
    differentiate,
    forward_parts,
    setup_backward,
)
from rnnorm.kernels.triton import graphs
from rnnorm.kernels.triton.backward import run_backward
from rnnorm.kernels.triton.forward import forward_shapes, run_forward
from rnnorm.norm.merged_moments import ActiveRows


@torch.library.custom_op("rnnorm::triton_backward", mutates_args=(), schema=BACKWARD)
def triton_backward(*arguments: Any) -> tuple[Tensor, ...]:
    """Gradients of x, h0, c0, the weights, biases, peepholes, gammas and the cell's beta."""
    arguments = contiguous(arguments)
    inputs, _, _, options, _ = backward_parts(arguments)
    check_call(inputs, options, DTYPES)
    check_results(arguments, forward_shapes(inputs, options, True))
    return _backward(*arguments, rows=None)


def _backward(*arguments: Any, rows: ActiveRows | None) -> tuple[Tensor, ...]:
    assert rows is None, "which the kernels do not take"
    return _captured(_run_backward, arguments)


def _captured(run: graphs.Run, arguments: tuple[Any, ...]) -> tuple[Tensor, ...]:
    x, sizes = arguments[:2]
    # Triton launches on the current device, which need not be the tensors'
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        here = graphs.here(x.device)
        # ragged batches are seldom alike, and a table of theirs comes from the host
        if here is None or bool((sizes < x.size(1)).any()):
            return tuple(run(*arguments))
        return tuple(here.run(run, arguments))


def _run_backward(*arguments: Any) -> list[Tensor]:
    return run_backward(*backward_parts(arguments))


triton_backward.register_fake(allocate_gradients)
triton_backward.register_autograd(differentiate, setup_context=setup_backward)


@torch.library.custom_op("rnnorm::triton_forward", mutates_args=(), schema=FORWARD)
def triton_forward(*arguments: Any) -> tuple[Tensor, ...]:
    """The arguments are those of ``Inputs``, then ``Options``, then whether backward follows."""
    arguments = contiguous(arguments)
    inputs, options, _ = forward_parts(arguments)
    check_call(inputs, options, DTYPES)
    return _captured(_run_forward, arguments)


def _forward(
    inputs: Inputs, options: Options, save: bool, rows: ActiveRows | None
) -> tuple[Tensor, ...]:
    assert rows is None, "which the kernels do not take"
    return _captured(_run_forward, (*inputs, *options, save))


def _run_forward(*arguments: Any) -> list[Tensor]:
    return run_forward(*forward_parts(arguments))


@triton_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    inputs, options, save = forward_parts(arguments)
    return tuple(
        inputs.x.new_empty(shape, dtype=dtype)
        for shape, dtype in forward_shapes(inputs, options, save)
    )


#: both passes
PASSES = Passes(_forward, _backward, triton_forward, triton_backward)
PASSES.make_differentiable()
