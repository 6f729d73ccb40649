"""What differs in code that torch.compile or torch.export traces, and in captured CUDA graphs."""

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
#: of torch, major and minor
RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])
# whose compiler takes our layers; those of 2.6 and 2.9 fail within themselves
_COMPILES = (2, 13)

Function = TypeVar("Function", bound=Callable[..., Any])


def stands_for_several(value: Tensor) -> bool:
    """Whether a tensor's values are not known yet: traced, meta, under vmap."""
    return (
        torch.compiler.is_compiling()
        or value.is_meta
        or torch._C._functorch.is_functorch_wrapped_tensor(value)
    )


def known(value: Tensor) -> int | None:
    """A tensor's one value, or None where it may stand for several."""
    return None if stands_for_several(value) else int(value)


def transformed() -> bool:
    """Whether a transform of torch.func is at work, outside of traced code."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def holds(condition: Tensor, otherwise: str) -> bool:
    """Whether a condition holds; traced code takes it for granted, and checks it when it runs.

    Args:
        condition: one bool.
        otherwise: text of the RuntimeError that traced code raises. It has no numbers of the
            input, which would tie the trace to them.
    """
    if torch.compiler.is_compiling():
        torch._assert_async(condition, otherwise)
        return True
    return bool(condition)


_for_onnx: ContextVar[bool] = ContextVar("rnnorm_for_onnx", default=False)


@contextmanager
def for_onnx() -> Iterator[None]:
    """Says that what torch.export makes within becomes a file of ONNX."""
    token = _for_onnx.set(True)
    try:
        yield
    finally:
        _for_onnx.reset(token)


def exporting() -> str:
    """What a program is made for at this moment: ``"torch"``, ``"onnx"``, or nothing."""
    # torch 2.6 does not tell
    if not getattr(torch.compiler, "is_exporting", bool)():
        return ""
    return "onnx" if _for_onnx.get() or torch.onnx.is_in_onnx_export() else "torch"


def jit_tracing() -> bool:
    """Whether torch.jit.trace is at work."""
    return torch._C._get_tracing_state() is not None


def unobserved(tensors: Iterable[Tensor | None]) -> bool:
    """Whether nothing wants to see an operator on them.

    That is a tracer, a dispatch mode, a subclass, vmap, or a forward-mode derivative.
    """
    if (
        torch.compiler.is_compiling()
        or jit_tracing()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    ):
        return False
    # is_grads_batched takes the older vmap, which is no transform of functorch
    batched = torch._C._functorch.is_legacy_batchedtensor
    held = [t for t in tensors if t is not None]
    return _PLAIN.issuperset(map(type, held)) and not any(map(batched, held))


def constant(function: Function) -> Function:
    """Makes torch.compile call a function while it traces, and keep the result."""
    # as torch.compiler.assume_constant_result, which imports the whole compiler
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def uncompiled(function: Function) -> Function:
    """Breaks torch.compile's graph at ``function``."""
    # not a decorator: that imports the whole compiler
    if torch.compiler.is_dynamo_compiling():
        return torch.compiler.disable(function)  # type: ignore[no-untyped-call,no-any-return]
    return function


def compiled_by_new_torch(forward: Function) -> Function:
    """Breaks the graph of an older torch.compile at a layer, which it cannot take."""
    if RELEASE >= _COMPILES:
        return forward

    @wraps(forward)
    def run(*arguments: Any, **options: Any) -> Any:
        return uncompiled(forward)(*arguments, **options)

    return run  # type: ignore[return-value]


def to_device(table: Tensor, device: torch.device) -> Tensor:
    """A table of the CPU on a device, which does not wait for what was launched there before."""
    if device.type != "cuda" or torch.compiler.is_compiling():
        return table.to(device)
    # a graph would read that memory again when it holds something else: refused by the former copy
    if torch.cuda.is_current_stream_capturing():
        return table.to(device)
    return table.pin_memory().to(device, non_blocking=True)
