"""Both passes as custom operators; the reference derives the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rnnorm.kernels import cuda_graphs
from rnnorm.kernels.autograd import Passes
from rnnorm.kernels.call import DTYPES
from rnnorm.kernels.call_inputs import check_call
from rnnorm.kernels.cuda import passes
from rnnorm.kernels.cuda.persistent import RefusedError, give_up
from rnnorm.kernels.inputs import Gradients, Inputs, Options, Results
from rnnorm.kernels.operators import (
    BACKWARD,
    FORWARD,
    backward_parts,
    check_results,
    contiguous,
    differentiate,
    fake_backward,
    forward_parts,
    setup_backward,
)
from rnnorm.kernels.precision import as_in_cudnn
from rnnorm.kernels.triton.backward import run_backward
from rnnorm.kernels.triton.forward import forward_shapes, run_forward
from rnnorm.norm.merged_moments import ActiveRows

# bytes of a call's recurrent terms
_MOST_COPIED = 64 << 20


def _captured(
    run: cuda_graphs.Run,
    inputs: Inputs,
    options: Options,
    arguments: tuple[Any, ...],
    *,
    back: bool,
    cuda: bool,
) -> list[Tensor]:
    """Run a pass on an operator's arguments, replayed from a CUDA graph where shapes repeat."""
    x = inputs.x
    # Triton launches on the current device, which need not be the tensors'
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        captured = cuda_graphs.current_graphs(x.device)
        # ragged batches seldom have the same sizes, and copy a table of these from the host
        ragged = int(inputs.sizes[-1]) < x.size(1)
        if captured is None or ragged:
            return run(*arguments)
        # a graph copies its inputs and results: if these are large, that takes longer than the few
        # launches of many steps from the host
        terms = x.size(0) * x.size(1) * len(inputs.weight_hh) * x.element_size()
        if terms > _MOST_COPIED and (
            cuda or passes.layout_of(inputs, options, back=back, ragged=ragged) is not None
        ):
            return run(*arguments)
        return captured.run(run, arguments)


def _operators(name: str, *, cuda: bool) -> Passes:
    """Return both passes, and register them as operators.

    Args:
        name: first word of the operators' names.
        cuda: whether the kernels in CUDA C++ run all steps, with all that only they cover.
    """
    run_forward_of = _retried(lambda given: run_forward(*forward_parts(given), cuda=cuda), cuda)
    run_backward_of = _retried(lambda given: run_backward(*backward_parts(given), cuda=cuda), cuda)

    def forward(inputs: Inputs, options: Options, save: bool, rows: ActiveRows | None) -> Results:
        """Run the forward pass, replayed from a CUDA graph where its shapes repeat."""
        assert rows is None, "the kernels do not take the rows of other processes"
        arguments = (*inputs, *options, save)
        return Results._make(
            _captured(run_forward_of, inputs, options, arguments, back=False, cuda=cuda)
        )

    def backward(
        inputs: Inputs,
        results: Results,
        upstream: Sequence[Tensor | None],
        options: Options,
        wants_x: bool,
        rows: ActiveRows | None = None,
    ) -> Gradients:
        """Run the backward pass, replayed from a CUDA graph where its shapes repeat."""
        assert rows is None, "the kernels do not take the rows of other processes"
        arguments = (*inputs, *results, *upstream, *options, wants_x)
        return Gradients._make(
            _captured(run_backward_of, inputs, options, arguments, back=True, cuda=cuda)
        )

    @torch.library.custom_op(f"rnnorm::{name}_backward", mutates_args=(), schema=BACKWARD)
    def backward_operator(*arguments: Any) -> tuple[Tensor, ...]:
        """Return the gradients of x, states, weights, biases, peepholes, gammas and beta."""
        parts = inputs, results, upstream, options, _ = backward_parts(contiguous(arguments))
        check_call(inputs, options, DTYPES, uniform=True, plain=not cuda, projected=not cuda)
        check_results(inputs, results, upstream, forward_shapes(inputs, options, True))
        if upstream[-1] is not None:
            raise RuntimeError("grad_all_c must be None: the kernels take no gradient of each c")
        return tuple(backward(*parts))

    @torch.library.custom_op(f"rnnorm::{name}_forward", mutates_args=(), schema=FORWARD)
    def forward_operator(*arguments: Any) -> tuple[Tensor, ...]:
        """Run the forward pass on ``Inputs``, ``Options`` and whether a backward pass follows."""
        inputs, options, save = forward_parts(contiguous(arguments))
        check_call(inputs, options, DTYPES, uniform=True, plain=not cuda, projected=not cuda)
        return tuple(forward(inputs, options, save, None))

    @forward_operator.register_fake
    def _(*arguments: Any) -> tuple[Tensor, ...]:
        inputs, options, save = forward_parts(arguments)
        return tuple(
            inputs.x.new_empty(shape, dtype=dtype)
            for shape, dtype in forward_shapes(inputs, options, save)
        )

    backward_operator.register_fake(fake_backward)
    backward_operator.register_autograd(differentiate, setup_context=setup_backward)
    made = Passes(forward, backward, forward_operator, backward_operator, takes_all_c=False)
    made.make_differentiable()
    return made


def _retried(run: Callable[[Sequence[Any]], Results | Gradients], cuda: bool) -> cuda_graphs.Run:
    """Return a pass that Triton's kernels run once more if the GPU refuses one in CUDA C++.

    With ``cuda`` there are no other kernels, and the pass raises the ``RefusedError``.
    """

    def retried(*arguments: Any) -> list[Tensor]:
        # x is the first argument of both operators
        x = arguments[0]
        with as_in_cudnn(x.device, x.dtype):
            try:
                return list(run(arguments))
            except RefusedError as error:
                give_up(x.device, error)
                if cuda:
                    raise
                return list(run(arguments))

    return retried


#: both passes of the Triton kernels
PASSES = _operators("triton", cuda=False)
#: both passes of the kernels in CUDA C++ alone
CUDA_PASSES = _operators("cuda", cuda=True)
