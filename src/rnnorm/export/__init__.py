"""Models as files that run without rnnorm: ONNX, and C for microcontrollers."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from rnnorm.export.c_source import CStream as CStream
from rnnorm.export.c_source import c as c
from rnnorm.export.comparison import compare, enlarged, in_own_dtypes, tensors_in
from rnnorm.export.output_files import check_path, naming, written_whole
from rnnorm.model.freeze import freeze
from rnnorm.norm.population import Population
from rnnorm.tracing import for_onnx


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
    from onnx_ir import DataType, tensor
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

    def transpose(self: Any, dim0: int, dim1: int) -> Any:
        """Translate transpose; onnxruntime 1.32 dies where float16 is transposed and multiplied."""
        order = [*range(len(self.shape))]
        order[dim0], order[dim1] = order[dim1], order[dim0]
        if self.dtype != DataType.FLOAT16:
            return op.Transpose(self, perm=order)
        wide = op.Transpose(op.Cast(self, to=DataType.FLOAT), perm=order)
        return op.Cast(wide, to=DataType.FLOAT16)

    aten = torch.ops.aten
    return {
        aten.transpose.int: transpose,
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
            PackedSequence or nested tensor, or is taken by ``**kwargs`` of ``forward``, or a tensor
            is bfloat16.
        ValueError: if there are more names than tensors, or ``path`` is a device or pipe.
        FileNotFoundError: if the folder of ``path`` does not exist.
        IsADirectoryError: if ``path`` is a folder.

    Warns:
        UserWarning: if an input called ``step`` is an int, and statistics differ from step to step,
            or one called ``lengths`` is a list.
    """
    import onnxruntime

    _check_example(model, example, kwargs)
    path = Path(path)
    check_path(path)
    _check_names("input_names", input_names, len(tensors_in(example, kwargs)))
    frozen = freeze(model)
    # cloned: torch.export merges inputs that are one and the same tensor
    example, kwargs = tree_map(
        lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf,
        (example, kwargs or {}),
    )
    given = _bound(frozen, example, kwargs)
    named = {name: value for name, value in given.items() if name in kwargs}
    if isinstance(given.get("step"), int) and any(
        isinstance(module, Population) and module.differs_by_step() for module in model.modules()
    ):
        warnings.warn(
            f"step is an int, so it is {given['step']} in every call of the file: if layers take "
            "it, and calls are to continue a sequence, give a tensor with the index of each row, "
            "such as torch.zeros(rows, dtype=torch.int64)",
            stacklevel=2,
        )
    if isinstance(given.get("lengths"), (list, tuple)):
        warnings.warn(
            f"lengths is a {type(given['lengths']).__name__}, so these are the lengths in every "
            "call of the file: give a tensor",
            stacklevel=2,
        )
    if dynamic_shapes is None:
        dynamic_shapes = {name: every_size(value) for name, value in given.items()}
    with _quiet(), in_own_dtypes(example, named):
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
    _check_names("output_names", output_names, len(program.model.graph.outputs))
    with written_whole(path) as (partial,):
        with naming(path):
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
        larger = enlarged(list(sizes.values()), example, named)
        messages = [compare(frozen, session, *inputs) for inputs in ((example, named), larger)]
    if any(messages):
        warnings.warn(next(filter(None, messages)), stacklevel=2)
    return sizes


def _check_example(
    model: nn.Module, example: tuple[Any, ...], kwargs: Mapping[str, Any] | None
) -> None:
    """Check the types of the inputs.

    Raises:
        TypeError: as :func:`onnx` does.
    """
    if not isinstance(example, tuple):
        kind = type(example).__name__
        raise TypeError(f"example must be a tuple of the model's inputs, as in (x,), got a {kind}")
    values = (*example, *(kwargs or {}).values())
    tensors = tensors_in(values)
    if any(isinstance(v, PackedSequence) for v in values) or any(t.is_nested for t in tensors):
        raise TypeError(
            "example must have no PackedSequence and no nested tensor: give a padded batch, and "
            "lengths in kwargs"
        )
    if any(t.dtype == torch.bfloat16 for t in (*model.parameters(), *tensors)):
        raise TypeError(
            "model and example must not be bfloat16, in which onnxruntime has no matrix product on "
            "a CPU: export model.float() with an example in float32"
        )


def _bound(model: nn.Module, example: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs by the names of the parameters of ``forward``, in their order.

    Raises:
        TypeError: if the inputs do not fit ``forward``, or it takes some by ``**kwargs``.
    """
    try:
        given = inspect.signature(model.forward).bind(*example, **kwargs).arguments
    except TypeError as error:
        raise TypeError(f"example and kwargs must fit the model's forward: {error}") from None
    if unnamed := sorted(kwargs.keys() - given.keys()):
        raise TypeError(
            f"kwargs must name parameters of the model's forward, got {unnamed}, which it takes by "
            "**kwargs: that is not exported"
        )
    return dict(given)


def every_size(inputs: Any) -> Any:
    """Return ``dynamic_shapes`` that let every size change unless the model fixes it."""

    def of(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return None
        # torch fixes sizes of 0 and 1, and says so for each
        sizes = [dim for dim, size in enumerate(value.shape) if size > 1]
        return dict.fromkeys(sizes, torch.export.Dim.AUTO)

    return tree_map(of, inputs)


def _check_names(what: str, names: Sequence[str] | None, count: int) -> None:
    """Refuse more names than tensors, which torch ignores."""
    if names is not None and len(names) > count:
        raise ValueError(f"{what} must be at most {count}, one for each tensor, got {[*names]}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what torch and onnxscript say of their own code, and of sizes with two names."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _size(size: int | str) -> int | str:
    return int(size) if str(size).isdigit() else size
