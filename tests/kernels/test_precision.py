"""Which precision float32 products have on a GPU; its switches exist without one, too."""

import threading

import pytest
import torch

from rnnorm.kernels import precision
from rnnorm.kernels.cuda_graphs import Graphs
from rnnorm.kernels.precision import as_in_cudnn, float32_precision, products_in

CUDA = torch.device("cuda")
NEW = hasattr(torch.backends, "fp32_precision")
new_switches = pytest.mark.skipif(not NEW, reason="torch 2.9 and newer")


@pytest.fixture(autouse=True)
def _restored():
    # a switch that was never set cannot be set so again: it acts as before
    cudnn, matmul = (precision._shown(s) for s in (precision._CUDNN, precision._MATMUL))
    yield
    if NEW:
        torch.backends.fp32_precision = "none"
        torch.backends.cudnn.fp32_precision = "none"
    precision._set(precision._CUDNN, cudnn)
    precision._set(precision._MATMUL, matmul)


def matmul():
    return precision._shown(precision._MATMUL)


def test_it_is_tf32_as_torch_starts():
    assert torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    assert float32_precision() == "tf32"


def test_either_switch_allows_tf32(monkeypatch):
    torch.backends.cudnn.allow_tf32 = False
    assert float32_precision() == "ieee"
    torch.set_float32_matmul_precision("high")
    assert float32_precision() == "tf32"
    torch.set_float32_matmul_precision("highest")
    assert float32_precision() == "ieee"
    torch.backends.cudnn.allow_tf32 = True
    assert float32_precision() == "tf32"
    # torch.nn's layers are not cuDNN's then
    with torch.backends.cudnn.flags(enabled=False):
        assert float32_precision() == "ieee"
    monkeypatch.setattr(torch.version, "hip", "6.3")
    assert float32_precision() == "ieee"


@new_switches
def test_switches_that_are_not_set_follow_those_above():
    torch.backends.cudnn.rnn.fp32_precision = "none"
    assert float32_precision() == "ieee"
    torch.backends.fp32_precision = "tf32"
    assert float32_precision() == "tf32"
    torch.backends.cudnn.fp32_precision = "ieee"
    assert float32_precision() == "ieee"
    torch.backends.cudnn.rnn.fp32_precision = "tf32"
    assert float32_precision() == "tf32"


def test_products_of_float32_on_a_gpu_follow_cudnns_switch():
    before = matmul()
    for device, dtype in (("cpu", torch.float32), ("cuda", torch.float64), ("cuda", torch.half)):
        with as_in_cudnn(torch.device(device), dtype):
            assert matmul() == before != "tf32"
    with as_in_cudnn(CUDA, torch.float32):
        assert matmul() == "tf32"
    assert matmul() == before
    with pytest.raises(ZeroDivisionError), as_in_cudnn(CUDA, torch.float32):
        raise ZeroDivisionError
    assert matmul() == before
    with products_in("ieee"), as_in_cudnn(CUDA, torch.float32):
        assert matmul() == "ieee"
    with products_in("tf32"):
        with as_in_cudnn(CUDA, torch.float32):
            assert matmul() == "tf32"
        assert matmul() == "tf32"
    assert matmul() == before
    assert not torch.backends.cuda.matmul.allow_tf32


@new_switches
@pytest.mark.parametrize("own", ["none", "ieee"])
@pytest.mark.parametrize("cuda", ["none", "ieee"])
@pytest.mark.parametrize("everything", ["none", "ieee"])
def test_a_switch_that_followed_another_does_so_again(own, cuda, everything):
    def set_all(own, cuda, everything):
        torch.backends.cudnn.rnn.fp32_precision = "tf32"
        torch.backends.cuda.matmul.fp32_precision = own
        torch.backends.cudnn.fp32_precision = cuda
        torch.backends.fp32_precision = everything

    def shown():
        """All that a later change of one switch shows."""
        first = [torch.backends.fp32_precision, torch.backends.cudnn.fp32_precision, matmul()]
        torch.backends.fp32_precision = "tf32"
        second = [torch.backends.cudnn.fp32_precision, matmul()]
        torch.backends.cudnn.fp32_precision = "tf32"
        return [*first, *second, matmul()]

    set_all(own, cuda, everything)
    expected = shown()
    set_all(own, cuda, everything)
    with as_in_cudnn(CUDA, torch.float32):
        assert matmul() == "tf32"
    assert shown() == expected


def test_the_last_of_several_threads_puts_the_switch_back():
    before, entered, leave = matmul(), threading.Event(), threading.Event()

    def other():
        with as_in_cudnn(CUDA, torch.float32):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with as_in_cudnn(CUDA, torch.float32):
        thread.start()
        assert entered.wait(10)
    assert matmul() == "tf32"
    leave.set()
    thread.join()
    assert matmul() == before


def test_a_graph_serves_one_precision():
    captures = []

    def run(x):
        return [x + 1]

    def capture(run):
        captures.append(float32_precision())
        return run, run()

    made = Graphs(capture)
    for name in ("tf32", "ieee", "tf32"):
        with products_in(name):
            for _ in range(4):
                made.run(run, (torch.ones(1),))
    assert captures == ["tf32", "ieee"]
