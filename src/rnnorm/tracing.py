"""Helpers for code that torch.compile or torch.export may trace, or a CUDA graph may capture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

_PLAIN = frozenset((Tensor, Parameter))
#: major and minor version of torch
RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])
# first release whose compiler takes our layers; those of 2.6 and 2.9 fail with internal errors
_COMPILES = (2, 13)

Function = TypeVar("Function", bound=Callable[..., Any])


def symbolic() -> bool:
    """Tell whether FakeTensorMode or make_fx is active, within which tensors may have no values.

    It is False in code that torch.compile or torch.export traces.
    """
    if torch.compiler.is_compiling():
        return False
    mode, kind = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey
    return mode(kind.FAKE) is not None or mode(kind.PROXY) is not None


def values_unknown(value: Tensor) -> bool:
    """Tell whether the values of a tensor are not known yet: traced, meta, under vmap."""
    if torch.compiler.is_compiling() or value.is_meta:
        return True
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(value):
        # what follows derivatives alone has values
        if not functorch.is_gradtrackingtensor(value):
            return True
        value = functorch.get_unwrapped(value)
    return False


def known(value: Tensor) -> int | None:
    """Return the value of a tensor of one number, or None if it is not known yet."""
    return None if values_unknown(value) else int(value)


def transformed() -> bool:
    """Tell whether a transform of torch.func is active, outside of traced code."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def mapped() -> bool:
    """Tell whether torch.func.vmap is active, outside of traced code."""
    functorch = torch._C._functorch
    # None without a transform
    levels = (functorch.get_interpreter_stack() or []) if transformed() else []
    return any(level.key() == functorch.TransformType.Vmap for level in levels)


def holds(condition: Tensor, otherwise: str) -> bool:
    """Tell whether a condition holds; traced code assumes so, and checks it when it runs.

    Args:
        condition: a tensor of one bool.
        otherwise: text of the RuntimeError that traced code raises. It must have no numbers of
            the input, which would be fixed in the trace.
    """
    if torch.compiler.is_compiling():
        torch._assert_async(condition, otherwise)
        return True
    return bool(condition)


_for_onnx: ContextVar[bool] = ContextVar("rnnorm_for_onnx", default=False)


@contextmanager
def for_onnx() -> Iterator[None]:
    """Mark programs that torch.export makes within the context as meant for an ONNX file."""
    token = _for_onnx.set(True)
    try:
        yield
    finally:
        _for_onnx.reset(token)


def exporting() -> str:
    """Return what a program is being exported for: ``"torch"``, ``"onnx"``, or ``""``."""
    # torch 2.6 has no is_exporting
    if not getattr(torch.compiler, "is_exporting", bool)():
        return ""
    return "onnx" if _for_onnx.get() or torch.onnx.is_in_onnx_export() else "torch"


def jit_tracing() -> bool:
    """Tell whether torch.jit.trace is running."""
    return torch._C._get_tracing_state() is not None


def observed() -> bool:
    """Tell whether something observes all operators, whatever their tensors are.

    Such observers are tracers, dispatch modes, transforms and forward-mode derivatives.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def unobserved(tensors: Iterable[Tensor | None]) -> bool:
    """Tell whether operators on the tensors may be skipped, as nothing observes them.

    Observers are those of ``observed``, tensor subclasses and the older vmap.
    """
    if observed():
        return False
    # is_grads_batched uses the older vmap, which functorch does not see
    batched = torch._C._functorch.is_legacy_batchedtensor
    held = [t for t in tensors if t is not None]
    return _PLAIN.issuperset(map(type, held)) and not any(map(batched, held))


def constant(function: Function) -> Function:
    """Make torch.compile call a function while it traces, and keep the result."""
    # not torch.compiler.assume_constant_result, which imports the whole compiler
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def uncompiled(function: Function) -> Function:
    """Break torch.compile's graph at ``function``."""
    # not used as a decorator, which would import the whole compiler
    if torch.compiler.is_dynamo_compiling():
        return torch.compiler.disable(function)  # type: ignore[no-untyped-call,no-any-return]
    return function


def never_compiled(function: Function) -> Function:
    """Break torch.compile's graph at ``function``, as a decorator."""

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        return uncompiled(function)(*arguments, **options)

    return run  # type: ignore[return-value]


def compiled_by_new_torch(forward: Function) -> Function:
    """Break the graph at a layer for a torch.compile that is too old to compile it."""
    return forward if RELEASE >= _COMPILES else never_compiled(forward)


def to_device(table: Tensor, device: torch.device) -> Tensor:
    """Copy a table from the CPU to a device, without waiting for work launched there before."""
    if device.type != "cuda" or torch.compiler.is_compiling():
        return table.to(device)
    # pinned memory may be reused before a captured graph reads it: this copy is refused instead
    if torch.cuda.is_current_stream_capturing():
        return table.to(device)
    return table.pin_memory().to(device, non_blocking=True)


def steps_may_vary(steps: int) -> bool:
    """Tell whether traced code may run with another number of steps than it is traced with."""
    return not isinstance(steps, int) or torch.compiler.is_dynamo_compiling() or jit_tracing()
