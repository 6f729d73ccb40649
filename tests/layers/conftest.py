"""Fixtures that put a torch.nn class and the rnnorm class of the same name side by side."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import rnnorm
from descent import descend
from rnnorm import tracing

INPUT_SIZE = 3
HIDDEN_SIZE = 4

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no-bias": {"bias": False},
    "batch-first": {"batch_first": True},
    "three-layers": {"num_layers": 3},
    "bidirectional": {"bidirectional": True},
    "all": {"num_layers": 2, "bidirectional": True, "batch_first": True, "bias": False},
}
OWN_OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "RNN": {
        "relu": {"nonlinearity": "relu"},
        "relu-deep": {"nonlinearity": "relu", "num_layers": 2, "bidirectional": True},
    },
    "LSTM": {
        "projection": {"proj_size": 2},
        "projection-deep": {"proj_size": 2, "num_layers": 2, "bidirectional": True},
        "projection-no-bias": {"proj_size": 2, "num_layers": 2, "bias": False},
    },
    "GRU": {},
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Layers this small only lose time to a thread pool."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Sequence:
    """A sequence class by name, its options, and inputs and states that fit it."""

    name: str
    options: dict[str, Any]

    def torch(self, seed: int = 0, **more: Any) -> nn.RNNBase:
        torch.manual_seed(seed)
        options = {"dtype": torch.float64, **self.options, **more}
        return getattr(nn, self.name)(INPUT_SIZE, HIDDEN_SIZE, **options)

    def rnnorm(self, seed: int = 0, **more: Any) -> Any:
        torch.manual_seed(seed)
        # noise is for the tests that ask for it
        options = {"dtype": torch.float64, "initial_noise": 0.0, **self.options, **more}
        return getattr(rnnorm, self.name)(INPUT_SIZE, HIDDEN_SIZE, **options)

    def twins(self, **more: Any) -> tuple[Any, nn.RNNBase]:
        return self.rnnorm(**more), self.torch(**more)

    def input(self, rows: int | None = 3, length: int = 5, seed: int = 1) -> Tensor:
        """(T, B, I), or (B, T, I) with batch_first, or (T, I) where rows is None."""
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(length, rows or 1, INPUT_SIZE, dtype=torch.float64, generator=generator)
        if rows is None:
            return x[:, 0]
        return x.transpose(0, 1).contiguous() if self.options.get("batch_first") else x

    def packed(self, lengths: tuple[int, ...] = (2, 5, 3), seed: int = 1) -> PackedSequence:
        return pack_padded_sequence(
            self.input(len(lengths), max(lengths), seed),
            torch.tensor(lengths),
            batch_first=self.options.get("batch_first", False),
            enforce_sorted=sorted(lengths, reverse=True) == list(lengths),
        )

    def state(self, rows: int | None = 3, seed: int = 2) -> Any:
        """hx: (D * num_layers, B, H_out), for an LSTM with c of (D * num_layers, B, H)."""
        generator = torch.Generator().manual_seed(seed)
        count = self.options.get("num_layers", 1) * (1 + self.options.get("bidirectional", False))
        widths = [self.options.get("proj_size", 0) or HIDDEN_SIZE, HIDDEN_SIZE]
        h, c = (
            torch.randn(count, rows or 1, width, dtype=torch.float64, generator=generator)
            for width in widths
        )
        if rows is None:
            h, c = h[:, 0], c[:, 0]
        return (h, c) if self.name == "LSTM" else h


@pytest.fixture(
    params=[
        pytest.param(Sequence(name, options), id=f"{name}-{label}")
        for name, own in OWN_OPTIONS.items()
        for label, options in {**OPTIONS, **own}.items()
    ]
)
def sequence(request: pytest.FixtureRequest) -> Sequence:
    """Each sequence class with each of its options."""
    return request.param


@pytest.fixture(params=OWN_OPTIONS)
def plain(request: pytest.FixtureRequest) -> Sequence:
    """Each sequence class, one layer, one direction; those named, where a test names some."""
    return Sequence(request.param, {})


@pytest.fixture(params=[*OWN_OPTIONS, "LSTM-projection"])
def deep(request: pytest.FixtureRequest) -> Sequence:
    """Each sequence class with two layers and two directions, the LSTM also with a projection."""
    name, _, projection = request.param.partition("-")
    own = {"proj_size": 2} if projection else {}
    return Sequence(name, {"num_layers": 2, "bidirectional": True, **own})


@pytest.fixture(params=["RNNCell", "LSTMCell", "GRUCell"])
def cell_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["batch", "layer"])
def norm(request: pytest.FixtureRequest) -> str:
    return request.param


def _assert_same(ours: Any, theirs: Any, rtol: float, atol: float) -> None:
    """The same types, dtypes, shapes and values, through tuples and packed sequences."""
    assert type(ours) is type(theirs)
    if isinstance(ours, (tuple, list)):
        assert len(ours) == len(theirs)
        for our_part, their_part in zip(ours, theirs, strict=True):
            _assert_same(our_part, their_part, rtol, atol)
    else:
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


@pytest.fixture
def identical() -> Callable[[Any, Any], None]:
    """Compare types, dtypes, shapes and values bit by bit."""
    return partial(_assert_same, rtol=0, atol=0)


@pytest.fixture
def close() -> Callable[[Any, Any], None]:
    """Compare types, dtypes and shapes exactly, values to float64 rounding."""
    return partial(_assert_same, rtol=1e-10, atol=1e-12)


@pytest.fixture(params=["default", "reference"])
def same(request: pytest.FixtureRequest) -> Iterator[Callable[[Any, Any], None]]:
    """Compare with torch.nn: exactly on the default kernel, to rounding on the reference."""
    if request.param == "default":
        yield partial(_assert_same, rtol=0, atol=0)
        return
    with rnnorm.use_backend("reference"):
        yield partial(_assert_same, rtol=1e-10, atol=1e-12)


@pytest.fixture(params=["default", "aten", "reference"])
def same_packed(request: pytest.FixtureRequest) -> Iterator[Callable[[Any, Any], None]]:
    """Compare packed results with torch.nn: exactly on its own kernels, else to rounding."""
    exact = request.param == "aten"
    with nullcontext() if request.param == "default" else rnnorm.use_backend(request.param):
        yield partial(_assert_same, rtol=0 if exact else 1e-10, atol=0 if exact else 1e-12)


def _error(call: Callable[[], Any]) -> tuple[type[Exception], str] | None:
    try:
        call()
    except Exception as error:
        return type(error), str(error)
    return None


@pytest.fixture
def same_error() -> Callable[[Callable[[], Any], Callable[[], Any]], None]:
    """Both calls raise an error of the same type and text; or neither, under an older torch."""

    def compare(ours: Callable[[], Any], theirs: Callable[[], Any]) -> None:
        expected = _error(theirs)
        assert _error(ours) == expected
        # torch 2.6 takes some values that later ones refuse
        assert expected or tracing.RELEASE < (2, 13), "the call raised nothing"

    return compare


@pytest.fixture
def tensors() -> Callable[[Any], list[Tensor]]:
    """The floating-point tensors of a layer's result, in order."""

    def flatten(result: Any) -> list[Tensor]:
        if isinstance(result, PackedSequence):
            return [result.data]
        if isinstance(result, Tensor):
            return [result]
        return [tensor for part in result for tensor in flatten(part)]

    return flatten


@pytest.fixture
def torch_dtypes(tensors: Callable[[Any], list[Tensor]]) -> Callable[..., Any]:
    """The dtypes of a module's result under autocast, and whether torch can run it.

    Not every processor has a kernel of torch's for every dtype; ours then give autocast's.
    """

    def ask(module: nn.Module, *arguments: Any) -> tuple[list[torch.dtype], bool]:
        try:
            return [part.dtype for part in tensors(module(*arguments))], True
        except RuntimeError:
            parts = 3 if isinstance(module, nn.LSTM) else 2
            return [torch.get_autocast_dtype("cpu")] * parts, False

    return ask


@pytest.fixture
def gradients(tensors: Callable[[Any], list[Tensor]]) -> Callable[..., list[Tensor]]:
    """Gradients of one fixed weighting of a result with respect to some tensors."""

    def differentiate(result: Any, wanted: list[Tensor], **options: Any) -> list[Tensor]:
        generator = torch.Generator().manual_seed(3)
        total = sum(
            (part * torch.randn(part.shape, dtype=torch.float64, generator=generator)).sum()
            for part in tensors(result)
        )
        return list(torch.autograd.grad(total, wanted, **options))

    return differentiate


@pytest.fixture
def trained(deep: Sequence, norm: str) -> nn.RNNBase:
    """A layer that has seen two minibatches, in training mode."""
    layer = deep.rnnorm(norm=norm)
    for seed in (1, 2):
        descend(layer, deep.input(rows=4, seed=seed))
    return layer


@pytest.fixture(params=[True, False], ids=("gradient", "no gradient"))
def x(request: pytest.FixtureRequest) -> Iterator[Tensor]:
    """An input of the fixture ``lstm``, in a test with or without gradients."""
    with torch.set_grad_enabled(request.param):
        torch.manual_seed(1)
        yield torch.randn(5, 2, 3, dtype=torch.float64)


@pytest.fixture
def lstm() -> Any:
    """An LSTM with batch norm that has seen a minibatch, in evaluation."""
    torch.manual_seed(0)
    layer = rnnorm.LSTM(3, 4, norm="batch", dtype=torch.float64)
    layer(torch.randn(5, 6, 3, dtype=torch.float64))
    return layer.eval()
