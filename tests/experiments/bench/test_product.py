"""The product alone is what torch computes, and is compared with it before it is timed."""

import pytest
import torch

import rnnorm
from rnnorm.experiments.bench import product as bench_product
from rnnorm.experiments.bench.layers import VerificationError
from rnnorm.kernels.cpu.product import pack, product

pytestmark = pytest.mark.skipif(bool(rnnorm.backends()["cpu"]), reason="no CPU kernels")


@pytest.mark.parametrize("n", [*range(1, 15), 33])
def test_product(n):
    for K in (1, 2, 4, 7, 32):
        a, weight = torch.randn(n, K), torch.randn(128, K)
        c = product(a, pack(weight)).transpose(0, 1).flatten(1)
        torch.testing.assert_close(c, a @ weight.T)


def test_a_row_is_the_same_among_any_others():
    a, packed = torch.randn(40, 19), pack(torch.randn(64, 19))
    together = product(a, packed)
    for n in range(1, 40):
        assert torch.equal(product(a[:n], packed), together[:, :n])


def test_what_a_product_refuses():
    with pytest.raises(ValueError, match="multiple of 64 rows, got 65"):
        pack(torch.zeros(65, 3))
    with pytest.raises(ValueError, match=r"a must be a contiguous float32 matrix.*float64"):
        product(torch.zeros(2, 3).double(), pack(torch.zeros(64, 3)))
    with pytest.raises(ValueError, match="packed must have 256 columns for 4 of a, got 192"):
        product(torch.zeros(2, 4), pack(torch.zeros(64, 3)))


def test_a_share_of_the_peak():
    record = bench_product.time_product(5, 8, 2, seconds=0.001)
    assert record["shape"] == "5x8x128"
    assert record["product"] > 0
    assert record["peak"] > 0
    assert record["ratio"] > 0


def test_nothing_is_timed_after_a_wrong_product(monkeypatch):
    def interleave(*_, **__):
        raise AssertionError("timed before it was verified")

    monkeypatch.setattr(bench_product, "interleave", interleave)
    monkeypatch.setattr(bench_product, "product", lambda a, p: 1.01 * product(a, p))
    with pytest.raises(VerificationError, match=r"product 5x8x128: product differs"):
        bench_product.time_product(5, 8, 2, seconds=0.001)
