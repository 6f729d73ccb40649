"""Both passes as custom operators; the derivative of the second runs the reference."""

from __future__ import annotations

from typing import Any, get_type_hints

import torch
from torch import Tensor

from rnnorm.kernels import again
from rnnorm.kernels.inputs import LEAVES, Inputs, Options
from rnnorm.kernels.triton import graphs
from rnnorm.kernels.triton.backward import backward_like, run_backward
from rnnorm.kernels.triton.forward import forward_shapes, run_forward

_INPUTS = [
    f"{'Tensor' if hint is Tensor else 'Tensor?'} {name}"
    for name, hint in get_type_hints(Inputs).items()
]
_GIVEN = [f"{hint.__name__} {name}" for name, hint in get_type_hints(Options).items()]
_RESULTS, _UPSTREAM = 13, 3
_COUNT = len(Inputs._fields)


def _schema(arguments: list[str], results: int) -> str:
    return f"({', '.join(arguments)}) -> ({', '.join(['Tensor'] * results)})"


@torch.library.custom_op(
    "rnnorm::triton_backward",
    mutates_args=(),
    schema=_schema(
        [
            *_INPUTS,
            *[f"Tensor result_{k}" for k in range(_RESULTS)],
            *[f"Tensor? grad_{k}" for k in range(_UPSTREAM)],
            *_GIVEN,
            "bool wants_x",
        ],
        LEAVES - 1,
    ),
)
def triton_backward(*arguments: Any) -> tuple[Tensor, ...]:
    """Gradients of x, h0, c0, the weights, biases, peepholes, gammas and the cell's beta.

    The arguments are those of ``Inputs``, the results of the forward pass and the gradients of
    the first three, then ``Options``, then whether the gradient of x is wanted.
    """
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
    return run_backward(*_parts(arguments))


def _parts(arguments: tuple[Any, ...]) -> tuple[Inputs, Any, Any, Options, bool]:
    upstream = _COUNT + _RESULTS
    options = upstream + _UPSTREAM
    return (
        Inputs(*arguments[:_COUNT]),
        arguments[_COUNT:upstream],
        arguments[upstream:options],
        Options(*arguments[options:-1]),
        arguments[-1],
    )


@triton_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    inputs = Inputs(*arguments[:_COUNT])
    return tuple(
        inputs.x.new_empty(0) if like is None else torch.empty_like(like)
        for like in backward_like(inputs, arguments[-1])
    )


def _setup_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    given, _, upstream, ctx.options, _ = _parts(inputs)
    ctx.save_for_backward(*given, *upstream)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    found = again.differentiate(Inputs(*tensors[:_COUNT]), ctx.options, tensors[_COUNT:], grads)
    between = [None] * (_COUNT - LEAVES + _RESULTS)
    return (*found[:LEAVES], *between, *found[LEAVES:], *[None] * (len(Options._fields) + 1))


triton_backward.register_autograd(_differentiate, setup_context=_setup_backward)


@torch.library.custom_op(
    "rnnorm::triton_forward",
    mutates_args=(),
    schema=_schema([*_INPUTS, *_GIVEN, "bool save"], _RESULTS),
)
def triton_forward(*arguments: Any) -> tuple[Tensor, ...]:
    """The arguments are those of ``Inputs``, then ``Options``, then whether backward follows."""
    return _captured(_run_forward, arguments)


def _run_forward(*arguments: Any) -> list[Tensor]:
    return run_forward(Inputs(*arguments[:_COUNT]), Options(*arguments[_COUNT:-1]), arguments[-1])


@triton_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    inputs, options = Inputs(*arguments[:_COUNT]), Options(*arguments[_COUNT:-1])
    return tuple(
        inputs.x.new_empty(shape, dtype=dtype)
        for shape, dtype in forward_shapes(inputs, options, arguments[-1])
    )


def _setup_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *options, ctx.saved = inputs[_COUNT:]
    ctx.options = Options(*options)
    ctx.save_for_backward(*inputs[:_COUNT], *output)
    ctx.mark_non_differentiable(*output[3:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    if not ctx.saved:
        # a graph captured without gradients asks for none to be saved
        with torch.no_grad():
            tensors = (*tensors[:_COUNT], *triton_forward(*tensors[:_COUNT], *ctx.options, True))
    upstream = [None if g is None else g.contiguous() for g in grads[:_UPSTREAM]]
    wanted = ctx.needs_input_grad
    x, *rest = triton_backward(*tensors, *upstream, *ctx.options, wanted[0])
    # sizes have none
    found = [x, None, *rest]
    grads = tuple(g if needs else None for g, needs in zip(found, wanted, strict=False))
    return (*grads, *[None] * (len(wanted) - LEAVES))


triton_forward.register_autograd(_backward, setup_context=_setup_forward)
