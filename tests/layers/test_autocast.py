"""Autocast: the dtypes of torch.nn, and where torch.nn itself cannot run."""

import functools
import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import rnnorm
from rnnorm.kernels import dispatch


class WithoutKernel(nn.LSTM):
    """torch.nn.LSTM on a processor that lacks the dtype of autocast."""

    def forward(self, *arguments):
        raise RuntimeError("could not create a primitive")


@pytest.fixture
def lstm(monkeypatch):
    monkeypatch.setattr(rnnorm.LSTM, "torch_class", WithoutKernel)
    return lambda norm, dtype=torch.float32: rnnorm.LSTM(3, 4, norm=norm, dtype=dtype)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_normalised_layer_runs_where_torch_has_no_kernel(lstm, dtype, backend):
    if unavailable := rnnorm.backends()[backend]:
        pytest.skip(unavailable)
    layer, x, before = lstm("batch"), torch.randn(5, 4, 3), dispatch.calls.copy()
    with rnnorm.use_backend(backend), torch.autocast("cpu", dtype=dtype):
        output, (h_n, c_n) = layer(x)
    assert dispatch.calls - before == {backend: 1}
    assert output.dtype == h_n.dtype == c_n.dtype == dtype
    output.float().sum().backward()
    assert layer.weight_hh_l0.grad.isfinite().all()


def test_without_a_norm_the_error_is_torchs(lstm):
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(RuntimeError, match="could not create a primitive"),
    ):
        lstm(None)(torch.randn(5, 4, 3))


def test_float64_mixed_with_another_dtype_is_torchs_error(lstm):
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(RuntimeError, match="could not create a primitive"),
    ):
        lstm("batch", torch.float64)(torch.randn(5, 4, 3))


def test_another_class_in_the_place_of_torchs_changes_nothing(monkeypatch):
    layer, x = rnnorm.LSTM(3, 4, norm="layer"), torch.randn(5, 4, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = dtypes(layer(x))
        monkeypatch.setattr(nn, "LSTM", functools.partial(rnnorm.LSTM, norm="layer"))
        assert dtypes(nn.LSTM(3, 4)(x)) == before


CELLS = ["RNNCell", "LSTMCell", "GRUCell"]
CLASSES = ["RNN", "LSTM", "GRU"]
HALF = torch.bfloat16


def dtypes(answer):
    if isinstance(answer, torch.Tensor):
        return [answer.dtype]
    if isinstance(answer, PackedSequence):
        return [answer.data.dtype]
    return [dtype for part in answer for dtype in dtypes(part)]


def torchs_dtypes(layer, *arguments):
    with warnings.catch_warnings():
        # of oneDNN, which has no projections
        warnings.simplefilter("ignore")
        try:
            return dtypes(layer(*arguments))
        except RuntimeError as error:
            if "could not create a primitive" in str(error):
                pytest.skip("torch has no kernel of this dtype for this processor")
            raise


def twins(name, **options):
    return getattr(nn, name)(3, 4, **options), getattr(rnnorm, name)(3, 4, norm="layer", **options)


@pytest.mark.parametrize("of_state", [torch.float32, HALF, None], ids=str)
@pytest.mark.parametrize("of_input", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("name", [*CELLS, *CLASSES])
def test_results_have_torchs_dtypes_whatever_those_of_input_and_state(name, of_input, of_state):
    leading = (2,) if name in CELLS else (5, 2)
    x = torch.randn(*leading, 3, dtype=of_input)
    state = torch.zeros(*([] if name in CELLS else [1]), 2, 4, dtype=of_state)
    hx = None if of_state is None else (state, state) if name.startswith("LSTM") else state
    theirs, ours = twins(name)
    with torch.autocast("cpu", dtype=HALF):
        assert dtypes(ours(x, hx)) == torchs_dtypes(theirs, x, hx)


@pytest.mark.parametrize("ragged", [False, True])
def test_with_a_projection_c_keeps_the_dtype_that_torch_gives_it(ragged):
    x = torch.randn(5, 2, 3)
    given = pack_padded_sequence(x, torch.tensor([5, 3])) if ragged else x
    theirs, ours = twins("LSTM", proj_size=2)
    with torch.autocast("cpu", dtype=HALF):
        found = dtypes(ours(given))
        assert found == torchs_dtypes(theirs, given)
    assert found[2] == torch.float32


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_a_loop_over_a_cell_adds_up_c_in_the_dtype_of_its_state(norm):
    cell = rnnorm.LSTMCell(3, 4, norm=norm).eval()
    for parameter in cell.parameters():
        nn.init.zeros_(parameter)
    with torch.no_grad():
        # open gates, and 0.1 more at each step
        cell.bias_ih[:8] = 20.0
        cell.bias_ih[8:12] = math.atanh(0.1)
    h = c = torch.zeros(2, 4)
    with torch.no_grad(), torch.autocast("cpu", dtype=HALF), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(400):
            h, c = cell(torch.zeros(2, 3, dtype=HALF), (h, c), step=step)
    # bfloat16 would stay at 32
    assert c.dtype == torch.float32
    assert c[0, 0].item() == pytest.approx(40, rel=5e-3)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_half_type_that_is_not_autocasts_own_is_taken(bidirectional):
    theirs, ours = twins("GRU", bidirectional=bidirectional)
    x = torch.randn(5, 2, 3, dtype=torch.float16)
    with torch.autocast("cpu", dtype=HALF):
        assert dtypes(ours(x)) == torchs_dtypes(theirs, x)


@pytest.mark.parametrize("name", [*CELLS, *CLASSES])
def test_integers_and_float64_beside_float32_are_refused_under_autocast(name):
    _, ours = twins(name)
    leading = (2,) if name in CELLS else (5, 2)
    state = torch.zeros(*([] if name in CELLS else [1]), 2, 4, dtype=torch.int64)

    def both(s):
        return (s, s) if name.startswith("LSTM") else s

    x = torch.randn(*leading, 3)
    with torch.autocast("cpu", dtype=HALF):
        with pytest.raises(
            RuntimeError, match=r"input must have a floating point dtype, got .*int64"
        ):
            ours(torch.ones(*leading, 3, dtype=torch.int64))
        for other in (state, state.double()):
            with pytest.raises(RuntimeError, match="hx must have the dtype of the input"):
                ours(x, both(other))
