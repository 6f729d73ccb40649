"""Models as ONNX files, which run without rnnorm."""

from __future__ import annotations

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

from rnnorm.model.freeze import freeze
from rnnorm.tracing import for_onnx

#: largest root-mean-square difference from the model, relative to the output's
TOLERANCES = {torch.float16: 1e-2, torch.float32: 1e-4, torch.float64: 1e-9}


def translations() -> dict[Any, Callable[..., Any]]:
    """What rnnorm's layers ask of ONNX and ``torch.onnx`` has no translation for.

    For ``torch.onnx.export(model, …, custom_translation_table=rnnorm.export.translations())``,
    where :func:`onnx` does not fit.

    Returns:
        functions of onnxscript, by torch's operator.

    Raises:
        ImportError: onnxscript is missing.
    """
    import numpy as np
    from onnx_ir import tensor
    from onnxscript import opset18

    op: Any = opset18

    def sort(self: Any, stable: Any = None, dim: int = -1, descending: bool = False) -> Any:
        # of equal values TopK takes the lower index first
        count = op.Gather(op.Shape(self), op.Constant(value_ints=[dim]))
        return op.TopK(self, count, axis=dim, largest=int(descending), sorted=1)

    def cummax(self: Any, dim: int) -> Any:
        """Of one dimension, as that of a population's rows."""
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
        """Over the last dimension; ONNX's own operator has an ``eps`` of float32."""
        axis = op.Constant(value_ints=[-1])
        centred = op.Sub(input, op.ReduceMean(input, axis))
        var = op.ReduceMean(op.Mul(centred, centred), axis)
        wide = op.Cast(op.Constant(value=tensor(np.array(eps))), to=input.dtype)
        out = op.Div(centred, op.Sqrt(op.Add(var, wide)))
        out = out if weight is None else op.Mul(out, weight)
        return out if bias is None else op.Add(out, bias)

    aten = torch.ops.aten
    return {
        aten.sort.stable: sort,
        aten.cummax.default: cummax,
        aten.layer_norm.default: layer_norm,
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
    """Writes a model in evaluation as an ONNX file, one ``Scan`` for each layer and direction.

    What it returns in onnxruntime is compared with the model before the file gets its name: for
    the example, and again with every size that may change enlarged by one. Autocast is off
    meanwhile: the file computes in the model's own dtypes.

    Args:
        model: with layers of rnnorm, any cell and norm; a frozen copy is exported.
        example: its inputs, as for ``torch.export``: tensors, and tuples of them. What is no
            tensor is fixed. Two or more rows and steps: a size of 1 is fixed too.
        path: the file.
        kwargs: inputs by name, such as ``lengths`` and a ``step`` of each row.
        dynamic_shapes: which sizes may change, as for ``torch.export``; by default all that the
            model does not fix.
        input_names: of the tensors, by default those of the arguments.
        output_names: of the tensors that are returned.

    Returns:
        the sizes of each input, a name where one may change; equal names are equal sizes.

    Raises:
        ImportError: onnx, onnxscript or onnxruntime is missing (``rnnorm[export]``).
        RuntimeError: torch cannot export the model, or onnxruntime cannot run it or returns
            something else.
        TypeError: the example is no tuple, does not fit ``model.forward``, has a PackedSequence, or
            is taken by its ``**kwargs``; or something is bfloat16.
        FileNotFoundError: there is no such folder.
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
    # torch.export takes a tensor that is given twice for one input
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
    if dynamic_shapes is None:
        dynamic_shapes = {name: every_size(value) for name, value in given.items()}
    with warnings.catch_warnings(), _without_autocast(example, named):
        # torch's, of its own code and of sizes with two names
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
        # here the model warns of what it lacks, as a stream without step
        _compare(frozen, session, example, named)
        _compare(frozen, session, *_enlarged(list(sizes.values()), example, named))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return sizes


def every_size(inputs: Any) -> Any:
    """``dynamic_shapes`` by which all sizes may change that a model does not fix."""

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
    """Lets a model compute in its own dtypes on the CPU and on the devices of its inputs."""
    with ExitStack() as stack:
        for kind in {"cpu", *(tensor.device.type for tensor in _tensors(inputs))}:
            if torch.amp.is_autocast_available(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _enlarged(
    sizes: list[list[int | str]], example: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs with one more of every size that has a name, and other values where they are real.

    What is added repeats the first; values of an example are often all alike.
    """
    left, generator = iter(sizes), torch.Generator("cpu").manual_seed(0)

    def enlarge(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        for dim, size in enumerate(next(left)):
            # what is an expression follows another one
            if isinstance(size, str) and size.isidentifier():
                value = torch.cat([value, value.narrow(dim, 0, 1)], dim)
        if value.is_floating_point():
            added = torch.rand(value.shape, generator=generator, device="cpu")
            value = value + added.to(value)
        return value

    larger: tuple[tuple[Any, ...], dict[str, Any]] = tree_map(enlarge, (example, named))
    return larger


@torch.no_grad()
def _compare(
    model: nn.Module, session: Any, example: tuple[Any, ...], named: dict[str, Any]
) -> None:
    """Refuses a file that is not the model.

    Raises:
        RuntimeError: it returns something else.
    """
    with _without_autocast(example, named):
        wanted = [tensor.cpu() for tensor in _tensors(model(*example, **named))]
    names = [put.name for put in session.get_inputs()]
    feed = dict(zip(names, _tensors(example, named), strict=True))
    outputs = session.run(None, {name: tensor.numpy(force=True) for name, tensor in feed.items()})
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in feed.values())
    for put, found, want in zip(session.get_outputs(), outputs, wanted, strict=True):
        got = torch.from_numpy(found)
        if got.shape != want.shape:
            raise RuntimeError(
                f"onnxruntime returns {put.name} of shape {tuple(got.shape)} for inputs of "
                f"{shapes}, the model {tuple(want.shape)}: a size of the example is fixed"
            )
        if not want.numel():
            continue
        tolerance = TOLERANCES.get(want.dtype, 0.0)
        got, want = got.double(), want.double()
        # infinite values have to be equal
        difference = (got - want).masked_fill(got == want, 0)
        sizes = want.masked_fill(want.isinf(), 0)
        error, scale = ((t**2).mean().sqrt() for t in (difference, sizes))
        if not error <= tolerance * scale:
            raise RuntimeError(
                f"onnxruntime returns another {put.name} than the model for inputs of {shapes}: "
                f"the difference is {float(error):.1e} where the size is {float(scale):.1e}"
            )
