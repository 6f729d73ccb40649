"""The parts of the two passes' custom operators that all fused kernels share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, get_type_hints

import torch
from torch import Tensor

from rnnorm.kernels import second_derivative
from rnnorm.kernels.inputs import (
    DIFFERENTIABLE,
    LEAVES,
    RESULTS,
    Gradients,
    Inputs,
    Options,
    Results,
)

_UPSTREAM_NAMES = [f"grad_{name}" for name in DIFFERENTIABLE]
#: names of the tensors that a forward pass saves for the backward pass
SAVED_NAMES = (*Inputs._fields, *RESULTS)

_INPUTS = [
    f"{'Tensor' if hint is Tensor else 'Tensor?'} {name}"
    for name, hint in get_type_hints(Inputs).items()
]
# in a compiled program a whole number may be symbolic
_OPTIONS = [
    f"{'SymInt' if hint is int else hint.__name__} {name}"
    for name, hint in get_type_hints(Options).items()
]

# indices among the arguments of the first result, gradient and option
_COUNT = len(_INPUTS)
_UPSTREAM = _COUNT + len(RESULTS)
_GIVEN = _UPSTREAM + len(DIFFERENTIABLE)


def _schema(arguments: list[str], results: int) -> str:
    return f"({', '.join(arguments)}) -> ({', '.join(['Tensor'] * results)})"


#: schema of the forward pass: ``Inputs``, ``Options`` and whether a backward pass follows
FORWARD = _schema([*_INPUTS, *_OPTIONS, "bool save"], len(RESULTS))
#: schema of the backward pass: ``Inputs``, ``Results``, the gradients of those that have some,
#: ``Options`` and whether the gradient of x is wanted; it returns ``Gradients``
BACKWARD = _schema(
    [
        *_INPUTS,
        *[f"Tensor {name}" for name in RESULTS],
        *[f"Tensor? {name}" for name in _UPSTREAM_NAMES],
        *_OPTIONS,
        "bool wants_x",
    ],
    len(Gradients._fields),
)


def forward_parts(arguments: Sequence[Any]) -> tuple[Inputs, Options, bool]:
    """Split a forward operator's arguments: inputs, options, whether a backward pass follows."""
    return Inputs(*arguments[:_COUNT]), Options(*arguments[_COUNT:-1]), arguments[-1]


def backward_parts(
    arguments: Sequence[Any],
) -> tuple[Inputs, Results, Sequence[Tensor | None], Options, bool]:
    """Split a backward operator's arguments as ``BACKWARD`` lists them."""
    return (
        *saved_parts(arguments[:_UPSTREAM]),
        arguments[_UPSTREAM:_GIVEN],
        Options(*arguments[_GIVEN:-1]),
        arguments[-1],
    )


def saved_parts(tensors: Sequence[Any]) -> tuple[Inputs, Results]:
    """Split the tensors that a forward pass saved, which ``SAVED_NAMES`` lists."""
    return Inputs(*tensors[:_COUNT]), Results(*tensors[_COUNT:])


_of_gradients = attrgetter(*Gradients._fields)


def allocate_gradients(inputs: Inputs, wants_x: bool) -> Gradients:
    """Return gradients that are not yet written; an absent one has no elements.

    Args:
        inputs: inputs of the pass.
        wants_x: whether the gradient of x is wanted.
    """
    x, *others = _of_gradients(inputs)
    # an operator's results may not share memory, not even those without elements
    return Gradients._make(
        [
            inputs.x.new_empty(0) if like is None else torch.empty_like(like)
            for like in (x if wants_x else None, *others)
        ]
    )


def fake_backward(*arguments: Any) -> tuple[Tensor, ...]:
    """Return the results of a backward operator, not yet written."""
    inputs, _, _, _, wants_x = backward_parts(arguments)
    return tuple(allocate_gradients(inputs, wants_x))


def for_backward(results: Results) -> tuple[Tensor, ...]:
    """Drop h_n, c_n and all_c, which no backward pass reads and a user may change."""
    absent = results.output.new_empty(0)
    return results.output, absent, absent, absent, *results.without_gradients


def setup_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save the inputs, options and results of a forward operator's call."""
    given, ctx.options, ctx.has_saved = forward_parts(inputs)
    results = Results(*output)
    save(ctx, (*given, *for_backward(results)))
    ctx.mark_non_differentiable(*results.without_gradients)
    ctx.set_materialize_grads(False)


def contiguous(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments with contiguous tensors, as kernels read them.

    An exported program may be given other strides than its example's, and a hook on saved tensors
    may return any.
    """
    return tuple([t.contiguous() if isinstance(t, Tensor) else t for t in arguments])


#: what a kernel relies on of a tensor whose memory it reads
form = attrgetter("shape", "dtype", "device", "layout")
#: explains why a saved tensor may have changed
CHANGED = (
    "a hook on saved tensors returned it (torch.autograd.graph.saved_tensors_hooks), or it was "
    "changed after the forward pass (.data=, .to(), .half()). Let the hook return what it was "
    "given, and change parameters after backward()"
)


def _in_words(of_tensor: tuple[Any, ...]) -> str:
    shape, dtype, device, layout = of_tensor
    return f"{dtype} {tuple(shape)} on {device}, {layout}"


def save(ctx: Any, tensors: Sequence[Tensor | None]) -> None:
    """Save tensors for a backward pass, which gets them from ``saved``."""
    ctx.save_for_backward(*tensors)
    ctx.forms = list(map(form, [t for t in tensors if t is not None]))


def saved(ctx: Any, names: Sequence[str]) -> tuple[Any, ...]:
    """Return the tensors that ``save`` saved, made contiguous.

    Args:
        ctx: context of the pass.
        names: names of the tensors, for the error; there may be more names than tensors.

    Raises:
        RuntimeError: if one has another shape, dtype, device or layout than when it was saved.
    """
    tensors: tuple[Any, ...] = ctx.saved_tensors
    held = [t for t in tensors if t is not None]
    if (forms := list(map(form, held))) != ctx.forms:
        present = [name for name, t in zip(names, tensors, strict=False) if t is not None]
        for name, now, before in zip(present, forms, ctx.forms, strict=True):
            if now != before:
                raise RuntimeError(
                    f"{name} was saved for the backward pass as {_in_words(before)}, and came back "
                    f"as {_in_words(now)}: {CHANGED}"
                )
    return tensors if all(map(Tensor.is_contiguous, held)) else contiguous(tensors)


def check_results(
    inputs: Inputs,
    results: Results,
    upstream: Sequence[Tensor | None],
    expected: Sequence[tuple[Sequence[int], torch.dtype]],
) -> None:
    """Refuse results of a forward pass, and gradients of them, that a kernel would misread.

    Args:
        inputs: inputs of both passes, already checked.
        results: results of the forward pass.
        upstream: gradients of output, h_n, c_n and all_c.
        expected: shape and dtype of each result.

    Raises:
        RuntimeError: if a result or a gradient has another shape, dtype or device.
    """
    device, forms = inputs.x.device, dict(zip(RESULTS, expected, strict=True))
    # no backward pass reads h_n, c_n and all_c
    read = [name for name in RESULTS if name == "output" or name not in DIFFERENTIABLE]
    checked = [(name, getattr(results, name), forms[name]) for name in read]
    for name, grad in zip(DIFFERENTIABLE, upstream, strict=True):
        checked.append((f"grad_{name}", grad, forms[name]))
    for name, tensor, (shape, dtype) in checked:
        if tensor is None:
            continue
        if (tensor.shape, tensor.dtype, tensor.device) != (tuple(shape), dtype, device):
            raise RuntimeError(
                f"{name} must be {dtype} {tuple(shape)} on {device}, got {_in_words(form(tensor))}"
            )


def saved_or_run_again(
    ctx: Any, forward: Callable[..., tuple[Tensor, ...]]
) -> tuple[Inputs, Results]:
    """Return the inputs and results of a forward operator's call, run again if it saved nothing."""
    inputs, results = saved_parts(saved(ctx, SAVED_NAMES))
    if not ctx.has_saved:
        # a graph captured without gradients asks the forward pass to save nothing
        with torch.no_grad():
            results = Results(*forward(*inputs, *ctx.options, True))
    return inputs, results


def checked_upstream(
    grads: Sequence[Tensor | None], forms: Sequence[tuple[Any, ...] | None]
) -> list[Tensor | None]:
    """Return the gradients of the first results as a kernel reads them.

    Args:
        grads: gradients of output, h_n, c_n and all_c, or of the first of these.
        forms: form of each result, None where ``grads`` has None.

    Raises:
        RuntimeError: if the gradient of a result has another form than the result.
    """
    for name, grad, expected in zip(_UPSTREAM_NAMES, grads, forms, strict=False):
        # autograd does not check what a hook on a node returns
        if grad is not None and expected is not None and form(grad) != expected:
            raise RuntimeError(
                f"{name} must be {_in_words(expected)}, got {_in_words(form(grad))}: a hook on "
                "grad_fn has to return gradients of the form of those that it was given"
            )
    return [None if g is None else g.resolve_neg().contiguous() for g in grads]


def gradients(
    ctx: Any,
    inputs: Inputs,
    results: Results,
    grads: Sequence[Tensor | None],
    backward: Callable[..., Gradients],
) -> list[Tensor | None]:
    """Return the gradients of ``Inputs.leaves``, None where autograd does not want one.

    Args:
        ctx: context of the forward pass, with its options.
        inputs: inputs of the forward pass.
        results: results of the forward pass.
        grads: gradients of output, h_n, c_n and all_c.
        backward: runs the backward pass on inputs, results, ``grads``, options and whether the
            gradient of x is wanted.

    Raises:
        RuntimeError: if the gradient of a result has another form than the result.
    """
    output, c0, all_c = results.output, inputs.c0, None
    if ctx.options.wants_all_c and c0 is not None:
        all_c = c0.unsqueeze(-3).expand(*ctx.options.several, len(output), *c0.shape[-2:])
    likes = (output, inputs.h0, c0, all_c)
    # a result that the layer does not have has no gradient either
    grads = [None if like is None else g for g, like in zip(grads, likes, strict=True)]
    upstream = checked_upstream(grads, [None if like is None else form(like) for like in likes])
    wanted = ctx.needs_input_grad
    # x is the first input, and sizes, which have no gradient, the second
    x, *rest = backward(inputs, results, upstream, ctx.options, wanted[0])
    found = (x, None, *rest)
    return [grad if wants else None for grad, wants in zip(found, wanted, strict=False)]


def setup_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Save the tensors and options of a backward operator's call that ``differentiate`` needs."""
    given, _, upstream, ctx.options, _ = backward_parts(inputs)
    save(ctx, (*given, *upstream))
    ctx.set_materialize_grads(False)


def differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the derivative of a backward operator, by running the reference."""
    tensors = saved(ctx, (*Inputs._fields, *_UPSTREAM_NAMES))
    leaves, upstream = second_derivative.differentiate(
        Inputs(*tensors[:_COUNT]),
        ctx.options,
        tensors[_COUNT:],
        Gradients(*grads),  # type: ignore[arg-type]
    )
    # constants, masks and the forward pass's results come between the two
    between = [None] * (_UPSTREAM - LEAVES)
    return (*leaves, *between, *upstream, *[None] * (len(_OPTIONS) + 1))
