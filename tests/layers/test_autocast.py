"""Autocast where torch.nn itself cannot run."""

import pytest
import torch
from torch import nn

import rnnorm


class WithoutKernel(nn.LSTM):
    """torch.nn.LSTM on a processor that lacks the dtype of autocast."""

    def forward(self, *arguments):
        raise RuntimeError("could not create a primitive")


@pytest.fixture
def lstm(monkeypatch):
    monkeypatch.setattr(rnnorm.LSTM, "torch_class", WithoutKernel)
    return lambda norm, dtype=torch.float32: rnnorm.LSTM(3, 4, norm=norm, dtype=dtype)


@pytest.mark.parametrize("backend", ["default", "reference"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_normalised_layer_runs_where_torch_has_no_kernel(lstm, dtype, backend):
    layer = lstm("layer" if backend == "reference" else "batch")
    x = torch.randn(5, 4, 3)
    with torch.autocast("cpu", dtype=dtype):
        output, (h_n, c_n) = layer(x)
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
