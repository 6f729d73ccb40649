"""Moments: two passes, float32 or wider, whatever the type of the input."""

import pytest
import torch
from torch import nn

import rnnorm
from rnnorm import BatchNorm, LayerNorm

INPUT_ONLY = BatchNorm(recurrent=None, cell=None, gamma=1.0, eps=1e-12)


def layer(dtype, norm=INPUT_ONLY, **options):
    """An RNN without recurrence whose input term is its input."""
    module = rnnorm.RNN(4, 4, nonlinearity="relu", norm=norm, dtype=dtype, **options)
    with torch.no_grad():
        module.weight_ih_l0.copy_(torch.eye(4))
        for parameter in (module.weight_hh_l0, module.bias_ih_l0):
            parameter.zero_()
        module.bias_hh_l0.fill_(8.0)  # a relu that is never at its corner
    return module


@pytest.mark.parametrize("scope", ["frame", "sequence"])
def test_a_large_mean_costs_no_precision(scope):
    torch.manual_seed(0)
    norm = BatchNorm(input=scope, recurrent=None, cell=None, gamma=1.0, eps=1e-12)
    x = (torch.randn(3, 64, 4) + 3e4).double()
    x = x.float().double()  # the same numbers for both
    single, double = layer(torch.float32, norm), layer(torch.float64, norm)
    got, want = single(x.float())[0], double(x)[0]
    # E[x^2] - E[x]^2 would have no digit left here
    torch.testing.assert_close(got.double(), want, atol=1e-2, rtol=1e-2)
    for mine, theirs in zip(single.children(), double.children(), strict=True):
        torch.testing.assert_close(mine.var.double(), theirs.var, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_inputs_have_float32_statistics(dtype):
    torch.manual_seed(0)
    x = (torch.randn(3, 512, 4) + 4).to(dtype)
    module, double = layer(dtype), layer(torch.float64)
    output, state = module(x)
    want, _ = double(x.double())
    assert output.dtype == state.dtype == dtype
    torch.testing.assert_close(output.double(), want, atol=0.05, rtol=0.01)
    for mine, theirs in zip(module.children(), double.children(), strict=True):
        assert mine.mean.dtype == torch.float32
        torch.testing.assert_close(mine.mean.double(), theirs.mean, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(mine.var.double(), theirs.var, atol=1e-3, rtol=1e-3)


def test_half_sums_do_not_overflow():
    # 300 rows of 300: their sum of squares is far beyond float16
    x = torch.full((1, 300, 4), 300.0, dtype=torch.float16)
    x[:, ::2] = -300.0
    output, _ = layer(torch.float16)(x)
    torch.testing.assert_close(output[0, 0], torch.full((4,), 7.0, dtype=torch.float16))
    torch.testing.assert_close(output[0, 1], torch.full((4,), 9.0, dtype=torch.float16))


@pytest.mark.parametrize("cls", [rnnorm.RNN, rnnorm.LSTM, rnnorm.GRU])
def test_layer_norm_is_over_all_gates_of_a_term(cls):
    torch.manual_seed(0)
    norm = LayerNorm(recurrent=False, cell=False, eps=1e-12)
    module = cls(3, 4, norm=norm, dtype=torch.float64, bias=False)
    x = torch.randn(1, 2, 3, dtype=torch.float64)
    output, _ = module(x)
    z = x[0] @ module.weight_ih_l0.T
    groups = {rnnorm.RNN: [4], rnnorm.LSTM: [16], rnnorm.GRU: [8, 4]}[cls]
    scaled = [
        nn.functional.layer_norm(part, part.shape[-1:], eps=1e-12) for part in z.split(groups, -1)
    ]
    z = torch.cat(scaled, -1)
    if cls is rnnorm.RNN:
        want = z.tanh()
    elif cls is rnnorm.LSTM:
        i, _, g, o = z.chunk(4, -1)
        want = o.sigmoid() * (i.sigmoid() * g.tanh()).tanh()
    else:
        _, update, new = z.chunk(3, -1)
        want = (1 - update.sigmoid()) * new.tanh()
    torch.testing.assert_close(output[0], want)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", [BatchNorm(), LayerNorm()])
@pytest.mark.parametrize("cls", [rnnorm.RNN, rnnorm.LSTM, rnnorm.GRU])
def test_autocast_keeps_statistics_in_float32(cls, norm, training):
    torch.manual_seed(0)
    module = cls(3, 4, norm=norm, initial_noise=0.0)
    x = torch.randn(5, 6, 3)
    module(x)
    module.train(training)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = module(x)
    full, _ = module(x)
    torch.testing.assert_close(output.float(), full, atol=0.05, rtol=0.05)
    assert {b.dtype for b in module.buffers()} <= {torch.float32, torch.int64}
    output.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in module.parameters())
