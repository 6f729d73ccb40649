"""The dtypes in which torch.nn computes and returns under autocast."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from rnnorm.cells.cell import State, Weights
from rnnorm.tracing import constant

# taken now: a user may replace torch.nn's classes later
_TWO_STATES = (nn.LSTM, nn.LSTMCell)


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the dtype of matrix products in the current context, None without autocast."""
    kind = device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return None


def without_autocast(
    device: torch.device, products: torch.dtype | None
) -> AbstractContextManager[Any]:
    """Return a context without autocast; ``products`` is the result of ``autocast_dtype``."""
    return nullcontext() if products is None else torch.autocast(device.type, enabled=False)


def in_products(weights: Weights, products: torch.dtype) -> Weights:
    """Cast the matrices among the weights to ``products``, except float64 ones."""

    def cast(name: str, weight: Any) -> Any:
        matrix = name.startswith("weight") and weight is not None and weight.dim() == 2
        return weight.to(products) if matrix and weight.dtype != torch.float64 else weight

    first = zip(Weights._fields[:-1], weights[:-1], strict=True)
    own = {name: cast(name, weight) for name, weight in weights.own.items()}
    return Weights(**{name: cast(name, weight) for name, weight in first}, own=own)


def result_dtypes(
    torch_class: type[nn.Module],
    products: torch.dtype | None,
    x: Tensor,
    weight: Tensor,
    state: State,
    results: int,
    *,
    ragged: bool = False,
    projected: bool = False,
) -> tuple[torch.dtype, ...] | None:
    """Return the dtypes that torch.nn's class gives its results under autocast, else None.

    They differ between classes, devices, versions and grad modes, and for ragged input, so a small
    layer of torch.nn is run. If torch cannot run it, all dtypes are ``products``.

    Args:
        torch_class: torch.nn's class.
        products: the result of ``autocast_dtype``.
        x: the input.
        weight: one of the layer's weights.
        state: the states as the user gave them, empty if there are none.
        results: number of results: the states, and before them the output of a sequence class.
        ragged: whether the rows have different lengths.
        projected: whether h is projected.

    Raises:
        RuntimeError: if torch.nn refuses to mix float64 with another dtype.
    """
    if products is None:
        return None
    # a user's cell may have another number of states than torch's class
    alike = len(state) == (2 if issubclass(torch_class, _TWO_STATES) else 1)
    states = tuple([s.dtype for s in state]) if alike else ()
    question = (x.device, x.dtype, weight.dtype, states, ragged, projected)
    found = _ask_torch(torch_class, *question, products, torch.is_grad_enabled()) or (products,)
    return (found + found[:1] * results)[:results]


def in_dtypes(
    results: Iterable[Tensor], dtypes: tuple[torch.dtype, ...] | None
) -> tuple[Tensor, ...]:
    """Cast results to the dtypes that ``result_dtypes`` returned."""
    if dtypes is None:
        return tuple(results)
    return tuple([result.to(dtype) for result, dtype in zip(results, dtypes, strict=True)])


@constant
def _ask_torch(*question: Any) -> tuple[torch.dtype, ...]:
    """Return the dtypes that ``_dtypes_of_torch`` finds, also while torch.compile traces."""
    return _dtypes_of_torch(*question)


@cache
def _dtypes_of_torch(
    torch_class: type[nn.Module],
    device: torch.device,
    dtype: torch.dtype,
    weight_dtype: torch.dtype,
    states: tuple[torch.dtype, ...],
    ragged: bool,
    projected: bool,
    products: torch.dtype,
    grad: bool,
) -> tuple[torch.dtype, ...]:
    """Run a small layer of torch.nn and return the dtypes of its results, none if torch cannot."""
    frame = torch.zeros(1, 1, device=device, dtype=dtype)
    x = pack_sequence([frame.expand(2, 1), frame]) if ragged else frame
    units, options = (2, {"proj_size": 1}) if projected else (1, {})
    rows = (1, 2) if ragged else (1,)
    # h comes first: a projection makes it narrower than c
    given = [
        torch.zeros(*rows, width, device=device, dtype=of_state)
        for width, of_state in zip((1, units), states, strict=False)
    ]
    hx = () if not given else (tuple(given) if len(given) > 1 else given[0],)
    # built on meta, so that no random numbers are drawn
    layer = torch_class(1, units, device="meta", dtype=weight_dtype, **options)
    try:
        with torch.set_grad_enabled(grad), warnings.catch_warnings():
            # torch warns of its own kernels, which this package does not run
            warnings.simplefilter("ignore")
            answer = layer.to_empty(device=device)(x, *hx)
    except RuntimeError:
        # torch has no kernel of this dtype for this processor, or float64 is mixed with another
        if torch.float64 in (dtype, weight_dtype, *states):
            raise
        return ()
    return tuple(_dtypes(answer))


def _dtypes(answer: Any) -> Iterator[torch.dtype]:
    if isinstance(answer, PackedSequence):
        answer = answer.data
    if isinstance(answer, Tensor):
        yield answer.dtype
    else:
        for part in answer:
            yield from _dtypes(part)
