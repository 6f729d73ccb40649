"""The product alone is what torch computes, and is compared with it before it is timed."""

import os
import shutil

import pytest
import torch

from benchmarks import product as benchmark
from rnnorm.experiments.bench.layers import VerificationError
from rnnorm.kernels.cpu.library import isa

pytestmark = [
    pytest.mark.skipif(not isa(), reason="no CPU kernels"),
    pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "c++")), reason="no compiler"),
]


@pytest.fixture(scope="module")
def build():
    return benchmark.Product(isa())


@pytest.mark.parametrize("n", [*range(1, 15), 33])
def test_product(build, n):
    for K in (1, 2, 4, 7, 32):
        a, weight = torch.randn(n, K), torch.randn(128, K)
        c = build.multiply(a, build.pack(weight)).transpose(0, 1).flatten(1)
        torch.testing.assert_close(c, a @ weight.T)


def test_a_row_is_the_same_among_any_others(build):
    a, packed = torch.randn(40, 19), build.pack(torch.randn(64, 19))
    together = build.multiply(a, packed)
    for n in range(1, 40):
        assert torch.equal(build.multiply(a[:n], packed), together[:, :n])


def test_what_a_product_refuses(build):
    with pytest.raises(ValueError, match="multiple of 64 rows, got 65"):
        build.pack(torch.zeros(65, 3))
    with pytest.raises(ValueError, match=r"a must be a contiguous float32 matrix.*float64"):
        build.multiply(torch.zeros(2, 3).double(), build.pack(torch.zeros(64, 3)))
    with pytest.raises(ValueError, match="packed must have 256 columns for 4 of a, got 192"):
        build.multiply(torch.zeros(2, 4), build.pack(torch.zeros(64, 3)))


def test_a_share_of_the_peak(build):
    record = benchmark.time_product(build, 5, 8, 2, seconds=0.001)
    assert record["shape"] == "5x8x128"
    assert record["product"] > 0
    assert record["peak"] > 0
    assert record["ratio"] > 0


def test_nothing_is_timed_after_a_wrong_product(build, monkeypatch):
    def interleave(*_, **__):
        raise AssertionError("timed before it was verified")

    multiply = build.multiply
    monkeypatch.setattr(benchmark, "interleave", interleave)
    monkeypatch.setattr(build, "multiply", lambda a, p: 1.01 * multiply(a, p))
    with pytest.raises(VerificationError, match=r"product 5x8x128: product differs"):
        benchmark.time_product(build, 5, 8, 2, seconds=0.001)
