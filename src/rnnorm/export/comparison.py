"""The comparison of an ONNX file with its model, before the file gets its name."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

# largest root-mean-square difference from the model, relative to the output's
_TOLERANCES = {torch.float16: 1e-2, torch.float32: 1e-4, torch.float64: 1e-9}
# a result that moves by more than this many last bits counts as enlarged rounding, and a difference
# from the model of more than this many such movements counts as an error
_ROUNDING = 16.0


def tensors_in(*inputs: Any) -> list[Tensor]:
    """Return the tensors in nested inputs."""
    return [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]


@contextmanager
def in_own_dtypes(*inputs: Any) -> Iterator[None]:
    """Turn autocast off within the context, on the CPU and on the devices of the inputs."""
    with ExitStack() as stack:
        for kind in {"cpu", *(tensor.device.type for tensor in tensors_in(inputs))}:
            if torch.amp.is_autocast_available(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def enlarged(
    sizes: list[list[int | str]], example: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return inputs with every named size enlarged by one, and noise on floating point values.

    The added part repeats the first. Noise is added because examples are often constant.
    """
    left, generator = iter(sizes), torch.Generator("cpu").manual_seed(0)

    def enlarge(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        for dim, size in enumerate(next(left)):
            # a size that is an expression follows from another size
            if isinstance(size, str) and size.isidentifier():
                value = torch.cat([value, value.narrow(dim, 0, 1)], dim)
        if value.is_floating_point():
            added = torch.rand(value.shape, generator=generator, device="cpu")
            value = value + added.to(value)
        return value

    larger: tuple[tuple[Any, ...], dict[str, Any]] = tree_map(enlarge, (example, named))
    return larger


@torch.no_grad()
def _results(model: nn.Module, example: tuple[Any, ...], named: dict[str, Any]) -> list[Tensor]:
    """Return the tensors that a model returns, on the CPU."""
    with in_own_dtypes(example, named):
        return [tensor.cpu() for tensor in tensors_in(model(*example, **named))]


@torch.no_grad()
def _jittered_results(
    model: nn.Module, example: tuple[Any, ...], named: dict[str, Any]
) -> list[Tensor]:
    """Return the results where floating point inputs and parameters change in their last bit."""
    generator = torch.Generator("cpu").manual_seed(0)

    def jitter(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        drawn = 2 * torch.rand(value.shape, generator=generator, device="cpu") - 1
        return value + value * (torch.finfo(value.dtype).eps * drawn).to(value)

    twin = copy.deepcopy(model)
    for own in (*twin.parameters(), *twin.buffers()):
        own.copy_(jitter(own))
    return _results(twin, *tree_map(jitter, (example, named)))


@torch.no_grad()
def compare(model: nn.Module, session: Any, example: tuple[Any, ...], named: dict[str, Any]) -> str:
    """Check that an ONNX file returns what the model does.

    Returns:
        text of a warning if results differ as rounding makes them, else empty text.

    Raises:
        RuntimeError: if the results differ.
    """
    wanted = _results(model, example, named)
    names = [put.name for put in session.get_inputs()]
    feed = dict(zip(names, tensors_in(example, named), strict=True))
    outputs = session.run(None, {name: tensor.numpy(force=True) for name, tensor in feed.items()})
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in feed.values())
    jittered: list[Tensor] = []
    warning = ""
    for k, (put, found, want) in enumerate(
        zip(session.get_outputs(), outputs, wanted, strict=True)
    ):
        got = torch.from_numpy(found)
        if got.shape != want.shape:
            raise RuntimeError(
                f"onnxruntime returns {put.name} of shape {tuple(got.shape)} for inputs of "
                f"{shapes}, the model {tuple(want.shape)}: a size of the example is fixed"
            )
        if not want.numel():
            continue
        tolerance = _TOLERANCES.get(want.dtype, 0.0)
        last_bit = torch.finfo(want.dtype).eps if want.is_floating_point() else 0.0
        got, want = got.double(), want.double()
        error, scale = _rms(got, want), _rms(want.masked_fill(want.isinf(), 0))
        if error <= tolerance * scale:
            continue
        text = (
            f"onnxruntime returns another {put.name} than the model for inputs of {shapes}: the "
            f"difference is {error:.1e} where the size is {scale:.1e}"
        )
        # a recurrence may enlarge rounding from step to step
        jittered = jittered or _jittered_results(model, example, named)
        moved = _rms(jittered[k].double(), want)
        if not (moved > _ROUNDING * last_bit * scale and error <= _ROUNDING * moved):
            raise RuntimeError(text)
        warning = warning or (
            f"{text}. The model's own result moves by {moved:.1e} where inputs and parameters "
            "change in their last bit: so many steps enlarge rounding. Give an example of fewer "
            "steps, whose results can be compared more closely"
        )
    return warning


def _rms(one: Tensor, other: Tensor | float = 0.0) -> float:
    """Return the root mean square of a difference; infinite values are compared for equality."""
    difference = (one - other).masked_fill(one == other, 0)
    return float((difference**2).mean().sqrt())
