"""Numbers too small to be normal, for which some processors need a hundred cycles each."""

import pytest
import torch

import rnnorm


def subnormal(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor != 0) & (tensor.abs() < torch.finfo(tensor.dtype).tiny)


@pytest.fixture(autouse=True)
def torch_counts_them():
    """A command that trained in this process has asked torch not to."""
    torch.set_flush_denormal(False)
    yield
    torch.set_flush_denormal(False)


def gradient(backend: str, dtype: torch.dtype) -> torch.Tensor:
    """Of every frame by the last state, a sixteenth of it from step to step."""
    rnn = rnnorm.RNN(1, 20, bias=False, dtype=dtype)
    with torch.no_grad():
        rnn.weight_ih_l0.fill_(1.0)
        rnn.weight_hh_l0.copy_(torch.eye(20) / 16)
    x = torch.zeros(300, 3, 1, dtype=dtype, requires_grad=True)
    with rnnorm.use_backend(backend):
        (found,) = torch.autograd.grad(rnn(x)[1].sum(), x)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("number", [1, 2])
def test_a_vanishing_gradient_is_zero_before_it_is_subnormal(dtype, number, threads):
    # a second thread of torch keeps what was asked when it began, be it by another test
    threads(1)
    expected = gradient("reference", dtype)
    threads(number)
    found = gradient("cpu", dtype)
    assert subnormal(expected).any()
    assert not subnormal(found).any()
    # each of 20 units' own part may have been one
    assert (found - expected).abs().max() < 20 * torch.finfo(dtype).tiny


@pytest.mark.parametrize("flush", [False, True])
def test_no_thread_of_torch_counts_them_otherwise_after_a_pass(flush, threads):
    threads(2)
    small = torch.full((1 << 20,), 1e-40)
    assert torch.set_flush_denormal(flush)
    kept = small * 1
    gradient("cpu", torch.float32)
    assert torch.equal(small * 1, kept)
    assert kept[0] == (0 if flush else small[0])
