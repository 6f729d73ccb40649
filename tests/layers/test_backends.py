"""Which kernel runs, and how one learns of it."""

from dataclasses import dataclass
from importlib.util import find_spec

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import rnnorm
from rnnorm.kernels import dispatch


@pytest.fixture
def calls():
    """What was counted since the last look."""
    seen = dispatch.calls.copy()

    def since():
        nonlocal seen
        new = dispatch.calls - seen
        seen = dispatch.calls.copy()
        return dict(new)

    return since


def test_backends_are_listed_with_the_reason_why_not():
    found = rnnorm.backends()
    assert {"aten", "reference"} <= set(found)
    assert found["aten"] == found["reference"] == ""
    assert all(isinstance(reason, str) for reason in found.values())


def test_without_triton_it_is_said_how_to_install_it():
    reason = rnnorm.backends()["triton"]
    assert "pip install" in reason if find_spec("triton") is None else "not installed" not in reason


def test_without_a_norm_torchs_own_operator_runs(deep, calls):
    deep.rnnorm()(deep.input())
    assert calls() == {"aten": 1}


def test_without_a_norm_lengths_run_on_the_faster_kernel(plain, calls):
    layer, packed = plain.rnnorm(), pack_padded_sequence(plain.input(), [5, 4, 2])
    fused = {"aten" if rnnorm.backends()["cpu"] else "cpu": 1}
    layer(packed)
    assert calls() == fused
    layer(plain.input(), lengths=[5, 4, 2])
    assert calls() == fused
    with rnnorm.use_backend("aten"):
        layer(packed)
        assert calls() == {"aten": 1}
        layer(plain.input(), lengths=[5, 4, 2])
        assert calls() == {"aten": 1}


def test_packed_rows_of_one_length_run_on_torchs_lstm(plain, calls):
    packed = pack_padded_sequence(plain.input(), [5, 5, 5])
    plain.rnnorm()(packed)
    torchs = plain.name == "LSTM" or rnnorm.backends()["cpu"]
    assert calls() == {"aten" if torchs else "cpu": 1}


def test_packed_rows_of_a_projected_lstm_run_on_the_faster_kernel(calls):
    layer = rnnorm.LSTM(3, 4, proj_size=2)
    layer(pack_padded_sequence(torch.zeros(5, 3, 3), [5, 4, 2]))
    assert calls() == {"aten" if rnnorm.backends()["cpu"] else "cpu": 1}


def test_one_layer_is_one_call(plain, norm, calls):
    plain.rnnorm(norm=norm)(plain.input())
    assert sum(calls().values()) == 1


def test_a_cell_is_one_call(cell_name, calls):
    cell = getattr(rnnorm, cell_name)(3, 4)
    cell(torch.zeros(5, 3))
    assert calls() == {"aten": 1}
    with rnnorm.use_backend("reference"):
        cell(torch.zeros(5, 3))
    assert calls() == {"reference": 1}


def test_a_forced_backend_runs_and_is_given_back(plain, calls):
    layer = plain.rnnorm()
    with rnnorm.use_backend("reference"):
        layer(plain.input())
        with rnnorm.use_backend("aten"):
            layer(plain.input())
            assert calls() == {"reference": 1, "aten": 1}
        layer(plain.input())
        assert calls() == {"reference": 1}
    layer(plain.input())
    assert calls() == {"aten": 1}


def test_a_forced_backend_is_given_back_after_an_error(plain, calls):
    layer = plain.rnnorm()
    with pytest.raises(KeyError), rnnorm.use_backend("reference"):
        raise KeyError
    layer(plain.input())
    assert calls() == {"aten": 1}


@pytest.mark.parametrize("name", ["", "gpu", "Reference", None])
def test_an_unknown_backend_is_an_error_that_lists_the_known_ones(name):
    with (
        pytest.raises(ValueError, match=r"aten.*reference|reference.*aten"),
        rnnorm.use_backend(name),
    ):
        pass


def test_a_backend_that_does_not_cover_the_layer_is_an_error(plain, norm):
    with (
        rnnorm.use_backend("aten"),
        pytest.raises((RuntimeError, ValueError), match=r"aten.*does not cover"),
    ):
        plain.rnnorm(norm=norm)(plain.input())


def test_the_logger_tells_once_which_kernel_runs(caplog, monkeypatch):
    monkeypatch.setattr(dispatch, "_logged", set())
    with caplog.at_level("DEBUG", "rnnorm"):
        for _ in range(2):
            layer = rnnorm.LSTM(3, 4, norm="batch")
            layer(torch.zeros(5, 3, 3)), layer(torch.zeros(5, 3, 3))
    (told,) = caplog.messages
    assert "runs on reference" in told or "runs on cpu" in told
    assert "LSTM" in told


def test_the_logger_needs_no_hash_of_a_cell(caplog):
    @dataclass(frozen=True)
    class Listed(rnnorm.Cell):
        rates: list[float]

        def step(self, weights, x_term, state, normalise, t):
            return x_term, (x_term,)

    with caplog.at_level("INFO", "rnnorm"):
        rnnorm.Recurrent(Listed([0.5]), 2, 3)(torch.randn(4, 2, 2))
    assert "Listed" in caplog.text


def test_the_public_names_are_those_of_the_design():
    names = {"RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell", "BatchNorm", "LayerNorm"}
    names |= {"update_bn", "select_horizon", "backends", "use_backend", "init"}
    assert names <= set(rnnorm.__all__)
