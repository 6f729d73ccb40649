"""The two passes of a fused kernel as custom operators: what is the same for every kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, get_type_hints

import torch
from torch import Tensor

from rnnorm.kernels import second_derivative
from rnnorm.kernels.inputs import LEAVES, RESULTS, Inputs, Options

_DIFFERENTIABLE = RESULTS[:3]
_UPSTREAM_NAMES = [f"grad_{name}" for name in _DIFFERENTIABLE]
#: of what a backward pass finds saved
SAVED_NAMES = (*Inputs._fields, *RESULTS)

_INPUTS = [
    f"{'Tensor' if hint is Tensor else 'Tensor?'} {name}"
    for name, hint in get_type_hints(Inputs).items()
]
# a number may be a compiler's symbol
_OPTIONS = [
    f"{'SymInt' if hint is int else hint.__name__} {name}"
    for name, hint in get_type_hints(Options).items()
]

# where the arguments of the backward pass that are no inputs begin
_COUNT = len(_INPUTS)
_UPSTREAM = _COUNT + len(RESULTS)
_GIVEN = _UPSTREAM + len(_DIFFERENTIABLE)


def _schema(arguments: list[str], results: int) -> str:
    return f"({', '.join(arguments)}) -> ({', '.join(['Tensor'] * results)})"


#: the arguments are those of ``Inputs``, then ``Options``, then whether backward follows
FORWARD = _schema([*_INPUTS, *_OPTIONS, "bool save"], len(RESULTS))
#: those of ``Inputs``, the results of the forward pass and the gradients of the first three, then
#: ``Options``, then whether the gradient of x is wanted; returned is what ``backward_like`` names
BACKWARD = _schema(
    [
        *_INPUTS,
        *[f"Tensor {name}" for name in RESULTS],
        *[f"Tensor? {name}" for name in _UPSTREAM_NAMES],
        *_OPTIONS,
        "bool wants_x",
    ],
    LEAVES - 1,
)


def forward_parts(arguments: Sequence[Any]) -> tuple[Inputs, Options, bool]:
    """Inputs, options, whether backward follows."""
    return Inputs(*arguments[:_COUNT]), Options(*arguments[_COUNT:-1]), arguments[-1]


def backward_parts(arguments: Sequence[Any]) -> tuple[Inputs, Any, Any, Options, bool]:
    """Inputs, results of the forward pass, their gradients, options, whether x's is wanted."""
    return (
        Inputs(*arguments[:_COUNT]),
        arguments[_COUNT:_UPSTREAM],
        arguments[_UPSTREAM:_GIVEN],
        Options(*arguments[_GIVEN:-1]),
        arguments[-1],
    )


def backward_like(inputs: Sequence[Any], wants_x: bool) -> list[Tensor | None]:
    """What the gradients are like, in their order: x, h0, c0, weights and biases and the rest."""
    return [inputs[0] if wants_x else None, *inputs[2:LEAVES]]


def allocate_gradients(*arguments: Any) -> tuple[Tensor, ...]:
    """The results of a backward operator, not yet written; what is absent has no elements."""
    return tuple(
        [
            arguments[0].new_empty(0) if like is None else torch.empty_like(like)
            for like in backward_like(arguments, arguments[-1])
        ]
    )


def for_backward(results: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The results without h_n and c_n, which no backward pass reads and a user may change."""
    absent = results[0].new_empty(0)
    return (results[0], absent, absent, *results[3:])


def setup_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keeps of a forward operator's call what ``saved`` returns, and its options."""
    given, ctx.options, ctx.saved = forward_parts(inputs)
    keep(ctx, (*given, *for_backward(output)))
    ctx.mark_non_differentiable(*output[3:])
    ctx.set_materialize_grads(False)


def contiguous(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments whose tensors are contiguous, as kernels read them.

    An exported program may be given other strides than its example's, and a hook on saved tensors
    may return any.
    """
    return tuple([t.contiguous() if isinstance(t, Tensor) else t for t in arguments])


# what a kernel takes for granted of the memory that it reads
_form = attrgetter("shape", "dtype", "device", "layout")
#: why a tensor that was saved may not be what it was
CHANGED = (
    "a hook on saved tensors returned it (torch.autograd.graph.saved_tensors_hooks), or it was "
    "changed after the forward pass (.data=, .to(), .half()). Let the hook return what it was "
    "given, and change parameters after backward()"
)


def _in_words(form: tuple[Any, ...]) -> str:
    shape, dtype, device, layout = form
    return f"{dtype} {tuple(shape)} on {device}, {layout}"


def keep(ctx: Any, tensors: Sequence[Tensor | None]) -> None:
    """Saves tensors for a backward pass, which finds them with ``kept``."""
    ctx.save_for_backward(*tensors)
    ctx.forms = list(map(_form, [t for t in tensors if t is not None]))


def kept(ctx: Any, names: Sequence[str]) -> tuple[Any, ...]:
    """The tensors that ``keep`` has saved, contiguous.

    Raises:
        RuntimeError: one has another shape, dtype, device or layout than it had.
    """
    tensors: tuple[Any, ...] = ctx.saved_tensors
    held = [t for t in tensors if t is not None]
    if (forms := list(map(_form, held))) != ctx.forms:
        saved = [name for name, t in zip(names, tensors, strict=True) if t is not None]
        for name, now, before in zip(saved, forms, ctx.forms, strict=True):
            if now != before:
                raise RuntimeError(
                    f"{name} was saved for the backward pass as {_in_words(before)}, and came back "
                    f"as {_in_words(now)}: {CHANGED}"
                )
    return tensors if all(map(Tensor.is_contiguous, held)) else contiguous(tensors)


def check_results(
    arguments: Sequence[Any], expected: Sequence[tuple[Sequence[int], torch.dtype]]
) -> None:
    """Refuses results of a forward pass, and gradients of them, that a kernel would misread.

    Args:
        arguments: those of the backward pass, whose inputs were found to be right.
        expected: shapes and dtypes of the results.

    Raises:
        RuntimeError: one has another shape, dtype or device.
    """
    device, results = arguments[0].device, arguments[_COUNT:_UPSTREAM]
    given = zip(RESULTS, results, expected, strict=True)
    # no backward pass reads h_n and c_n
    pairs = [each for each in given if each[0] not in ("h_n", "c_n")]
    upstream = arguments[_UPSTREAM:_GIVEN]
    pairs += zip(_UPSTREAM_NAMES, upstream, expected[:3], strict=True)
    for name, tensor, (shape, dtype) in pairs:
        if tensor is None:
            continue
        if (tensor.shape, tensor.dtype, tensor.device) != (tuple(shape), dtype, device):
            raise RuntimeError(
                f"{name} must be {dtype} {tuple(shape)} on {device}, got {_in_words(_form(tensor))}"
            )


def saved(ctx: Any, forward: Callable[..., tuple[Tensor, ...]]) -> tuple[Any, ...]:
    """Inputs and results of a forward operator's call, made again if it saved nothing."""
    tensors = kept(ctx, SAVED_NAMES)
    if not ctx.saved:
        # a graph captured without gradients asks for none to be saved
        with torch.no_grad():
            tensors = (*tensors[:_COUNT], *forward(*tensors[:_COUNT], *ctx.options, True))
    return tensors


def gradients(
    ctx: Any,
    tensors: tuple[Any, ...],
    grads: tuple[Tensor | None, ...],
    backward: Callable[..., Sequence[Tensor]],
) -> list[Tensor | None]:
    """Of the inputs that may have them, by ``backward``, whose arguments are a schema's.

    Raises:
        RuntimeError: the gradient of a result has another form than the result.
    """
    results = (tensors[_COUNT], *tensors[2:4])
    for name, grad, like in zip(_UPSTREAM_NAMES, grads[:3], results, strict=True):
        # autograd itself does not look at what a hook on a node returns
        if grad is not None and _form(grad) != _form(like):
            raise RuntimeError(
                f"{name} must be {_in_words(_form(like))}, got {_in_words(_form(grad))}: a hook on "
                "grad_fn has to return gradients of the form of those that it was given"
            )
    upstream = [None if g is None else g.resolve_neg().contiguous() for g in grads[:3]]
    wanted = ctx.needs_input_grad
    x, *rest = backward(*tensors, *upstream, *ctx.options, wanted[0])
    # sizes have none
    found = (x, None, *rest)
    return [grad if wants else None for grad, wants in zip(found, wanted, strict=False)]


def setup_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keeps of a backward operator's call what ``differentiate`` needs."""
    given, _, upstream, ctx.options, _ = backward_parts(inputs)
    keep(ctx, (*given, *upstream))
    ctx.set_materialize_grads(False)


def differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    """A backward operator's own derivative, which runs the reference."""
    tensors = kept(ctx, (*Inputs._fields, *_UPSTREAM_NAMES))
    found = second_derivative.differentiate(
        Inputs(*tensors[:_COUNT]), ctx.options, tensors[_COUNT:], grads
    )
    between = [None] * (_UPSTREAM - LEAVES)
    return (*found[:LEAVES], *between, *found[LEAVES:], *[None] * (len(_OPTIONS) + 1))
