"""Models as files that run without rnnorm: ONNX, and C for microcontrollers."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves, tree_map

from rnnorm.export.c_source import CStream as CStream
from rnnorm.export.c_source import c as c
from rnnorm.export.c_source import naming_in_errors
from rnnorm.model.freeze import freeze
from rnnorm.norm.population import Population
from rnnorm.tracing import for_onnx

#: largest root-mean-square difference from the model, relative to the output's
TOLERANCES = {torch.float16: 1e-2, torch.float32: 1e-4, torch.float64: 1e-9}
# a result that moves by more than this many last bits counts as enlarged rounding, and a difference
# from the model of more than this many such movements counts as an error
_ROUNDING = 16.0


def translations() -> dict[Any, Callable[..., Any]]:
    """Return translations to ONNX of the operators that ``torch.onnx`` cannot translate.

    If :func:`onnx` does not fit, use them in
    ``torch.onnx.export(model, …, custom_translation_table=rnnorm.export.translations())``.

    Returns:
        functions of onnxscript, by torch's operator.

    Raises:
        ImportError: if onnxscript is missing.
    """
    import numpy as np
    from onnx_ir import tensor
    from onnxscript import opset18

    op: Any = opset18

    def sort(self: Any, stable: Any = None, dim: int = -1, descending: bool = False) -> Any:
        # stable: among equal values TopK takes the lower index first
        count = op.Gather(op.Shape(self), op.Constant(value_ints=[dim]))
        return op.TopK(self, count, axis=dim, largest=int(descending), sorted=1)

    def cummax(self: Any, dim: int) -> Any:
        """Translate cummax of a vector, as the rows of a population are."""
        last = op.Shape(self)
        rows = op.Range(op.Constant(value_int=0), op.Squeeze(last), op.Constant(value_int=1))
        column = op.Unsqueeze(rows, op.Constant(value_ints=[1]))
        least = op.ReduceMin(self, keepdims=1)
        seen = op.Where(op.GreaterOrEqual(column, rows), self, least)
        found = op.TopK(seen, op.Constant(value_ints=[1]), axis=1)
        return tuple(op.Squeeze(part, op.Constant(value_ints=[1])) for part in found)

    def layer_norm(
        input: Any,
        normalized_shape: Any,
        weight: Any = None,
        bias: Any = None,
        eps: float = 1e-5,
        cudnn_enable: bool = True,
    ) -> Any:
        """Translate layer norm over the last dimension; ONNX's operator has a float32 ``eps``."""
        axis = op.Constant(value_ints=[-1])
        centred = op.Sub(input, op.ReduceMean(input, axis))
        var = op.ReduceMean(op.Mul(centred, centred), axis)
        wide = op.Cast(op.Constant(value=tensor(np.array(eps))), to=input.dtype)
        out = op.Div(centred, op.Sqrt(op.Add(var, wide)))
        out = out if weight is None else op.Mul(out, weight)
        return out if bias is None else op.Add(out, bias)

    def rms_norm(input: Any, normalized_shape: Any, weight: Any, eps: float) -> Any:
        """Translate RMS norm over the last dimension, as ``layer_norm`` above."""
        square = op.ReduceMean(op.Mul(input, input), op.Constant(value_ints=[-1]))
        wide = op.Cast(op.Constant(value=tensor(np.array(eps))), to=input.dtype)
        return op.Mul(op.Div(input, op.Sqrt(op.Add(square, wide))), weight)

    aten = torch.ops.aten
    return {
        aten.sort.stable: sort,
        aten.cummax.default: cummax,
        aten.layer_norm.default: layer_norm,
        aten.rms_norm.default: rms_norm,
    }


def onnx(
    model: nn.Module,
    example: tuple[Any, ...],
    path: str | Path,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> dict[str, list[int | str]]:
    """Write a model in evaluation as an ONNX file, with a ``Scan`` for each layer and direction.

    Before the file gets its name, its results in onnxruntime are compared with the model's: for
    the example, and again with every size that may change enlarged by one. A difference that
    rounding explains, since the model enlarges it from step to step, is a warning. Autocast is off
    during the export: the file computes in the model's own dtypes.

    Args:
        model: model with layers of rnnorm, of any cell and norm; a frozen copy is exported.
        example: inputs of the model, as for ``torch.export``: tensors, and tuples of them. Values
            that are not tensors are fixed, such as an int ``step``, and so are sizes of 1: give two
            or more rows and steps.
        path: path of the file.
        kwargs: inputs by name, such as ``lengths``, a ``step`` of each row and ``reset``.
        dynamic_shapes: which sizes may change, as for ``torch.export``; by default all that the
            model does not fix.
        input_names: names of the input tensors, by default those of the arguments.
        output_names: names of the returned tensors.

    Returns:
        the sizes of each input, with a name for a size that may change; equal names are equal
        sizes.

    Raises:
        ImportError: if onnx, onnxscript or onnxruntime is missing (``rnnorm[export]``).
        RuntimeError: if torch cannot export the model, or onnxruntime cannot run the file or
            returns other results.
        TypeError: if the example is not a tuple, does not fit ``model.forward``, has a
            PackedSequence, or is taken by ``**kwargs`` of ``forward``, or a tensor is bfloat16.
        FileNotFoundError: if the folder of ``path`` does not exist.

    Warns:
        UserWarning: if an input called ``step`` is an int, and statistics differ from step to step.
    """
    import onnxruntime

    if not isinstance(example, tuple):
        kind = type(example).__name__
        raise TypeError(f"example must be a tuple of the model's inputs, as in (x,), got a {kind}")
    if any(isinstance(value, PackedSequence) for value in (*example, *(kwargs or {}).values())):
        raise TypeError(
            "example must have no PackedSequence: give a padded batch, and lengths in kwargs"
        )
    if any(t.dtype == torch.bfloat16 for t in (*model.parameters(), *_tensors(example, kwargs))):
        raise TypeError(
            "model and example must not be bfloat16, in which onnxruntime has no matrix product on "
            "a CPU: export model.float() with an example in float32"
        )
    frozen, path = freeze(model), Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"path must be in a folder that exists, got {path}")
    # cloned: torch.export merges inputs that are one and the same tensor
    example, kwargs = tree_map(
        lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf,
        (example, kwargs or {}),
    )
    given = inspect.signature(frozen.forward).bind(*example, **kwargs).arguments
    named = {name: value for name, value in given.items() if name in kwargs}
    if unnamed := sorted(kwargs.keys() - named):
        raise TypeError(
            f"kwargs must name parameters of the model's forward, got {unnamed}, which it takes by "
            "**kwargs: that is not exported"
        )
    if isinstance(given.get("step"), int) and any(
        isinstance(module, Population) and module.differs_by_step() for module in model.modules()
    ):
        warnings.warn(
            f"step is an int, so it is {given['step']} in every call of the file: if layers take "
            "it, and calls are to continue a sequence, give a tensor with the index of each row, "
            "such as torch.zeros(rows, dtype=torch.int64)",
            stacklevel=2,
        )
    if dynamic_shapes is None:
        dynamic_shapes = {name: every_size(value) for name, value in given.items()}
    with warnings.catch_warnings(), _without_autocast(example, named):
        # torch warns of its own code, and of sizes with two names
        warnings.simplefilter("ignore")
        with for_onnx():
            exported = torch.export.export(frozen, example, named, dynamic_shapes=dynamic_shapes)
        program = torch.onnx.export(
            exported,
            dynamic_shapes=dynamic_shapes,
            input_names=input_names,
            output_names=output_names,
            custom_translation_table=translations(),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    partial = path.with_name(f"{path.name}.partial")
    try:
        with naming_in_errors(path):
            program.save(partial, external_data=False)
        try:
            session = onnxruntime.InferenceSession(partial, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise RuntimeError(
                "onnxruntime cannot run what the model computes; in bfloat16, as within an "
                "autocast of the model's own forward, it has no matrix product on a CPU: "
                f"{error}"
            ) from error
        sizes = {put.name: [*map(_size, put.shape)] for put in session.get_inputs()}
        # in this run the model gives its own warnings, as of a stream without step
        larger = _enlarged(list(sizes.values()), example, named)
        messages = [_compare(frozen, session, *inputs) for inputs in ((example, named), larger)]
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    if any(messages):
        warnings.warn(next(filter(None, messages)), stacklevel=2)
    return sizes


def every_size(inputs: Any) -> Any:
    """Return ``dynamic_shapes`` that let every size change unless the model fixes it."""

    def of(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return None
        return dict.fromkeys(range(value.dim()), torch.export.Dim.AUTO)

    return tree_map(of, inputs)


def _size(size: int | str) -> int | str:
    return int(size) if str(size).isdigit() else size


def _tensors(*inputs: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]


@contextmanager
def _without_autocast(*inputs: Any) -> Iterator[None]:
    """Turn autocast off within the context, on the CPU and on the devices of the inputs."""
    with ExitStack() as stack:
        for kind in {"cpu", *(tensor.device.type for tensor in _tensors(inputs))}:
            if torch.amp.is_autocast_available(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _enlarged(
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
    with _without_autocast(example, named):
        return [tensor.cpu() for tensor in _tensors(model(*example, **named))]


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
def _compare(
    model: nn.Module, session: Any, example: tuple[Any, ...], named: dict[str, Any]
) -> str:
    """Check that an ONNX file returns what the model does.

    Returns:
        text of a warning if results differ as rounding makes them, else empty text.

    Raises:
        RuntimeError: if the results differ.
    """
    wanted = _results(model, example, named)
    names = [put.name for put in session.get_inputs()]
    feed = dict(zip(names, _tensors(example, named), strict=True))
    outputs = session.run(None, {name: tensor.numpy(force=True) for name, tensor in feed.items()})
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in feed.values())
    jittered: list[Tensor] = []
    enlarged = ""
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
        tolerance = TOLERANCES.get(want.dtype, 0.0)
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
        enlarged = enlarged or (
            f"{text}. The model's own result moves by {moved:.1e} where inputs and parameters "
            "change in their last bit: so many steps enlarge rounding. Give an example of fewer "
            "steps, whose results can be compared more closely"
        )
    return enlarged


def _rms(one: Tensor, other: Tensor | float = 0.0) -> float:
    """Return the root mean square of a difference; infinite values are compared for equality."""
    difference = (one - other).masked_fill(one == other, 0)
    return float((difference**2).mean().sqrt())
