"""Products of bfloat16 on the CPU kernel, beside the definition and beside torch.nn.

Where the processor does not multiply in bfloat16, the same tests see its float32 numbers.
"""

import mmap
import re
from pathlib import Path

import pytest
import torch
from problems import CELLS, DROPOUTS, MORE_CELLS, MORE_NORMS, PEEPHOLES, Problem, assert_same

import rnnorm
from rnnorm.kernels import reference
from rnnorm.kernels.cpu import backward, library
from rnnorm.kernels.cpu import layer as cpu

SMAPS = Path("/proc/self/smaps")
SHAPES = {
    "one-row-one-step": ((1, 1, 1, 1), None),
    "odd": ((6, 9, 41, 21), None),
    "units-16": ((4, 13, 3, 16), None),
    "units-100": ((5, 30, 7, 100), None),
    "ragged": ((9, 7, 5, 13), [9, 9, 7, 4, 4, 2, 1]),
    "chunks": ((12, 130, 33, 24), None),
}


def rounded(*arguments, **options):
    """A problem whose leaves are numbers of bfloat16."""
    problem = Problem(*arguments, **options)
    problem.leaves = {name: leaf.bfloat16().double() for name, leaf in problem.leaves.items()}
    return problem


def assert_as_good(problem):
    """The bound is what rounding h and the gradients of its products to 8 bits makes of them.

    A rectifier whose input is nearly zero may open or close, which changes some gradients wholly.
    """
    expected = problem.results(reference.layer, torch.float64)
    found = problem.results(cpu.layer, torch.bfloat16, poison=True)
    assert found["output"].dtype == torch.bfloat16
    assert all(found[name].dtype == torch.float32 for name in found if name.startswith("mean"))
    rectified = problem.cell in ("RNN_RELU", "LiGRU")
    assert_same(found, expected, 0.25 if rectified else 0.06)


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("min_rows", [2, None])
@pytest.mark.parametrize("norm", ["none", "all", "sequence", "joint", "layer", "rms-joint-term"])
@pytest.mark.parametrize("cell", [*CELLS, *MORE_CELLS])
def test_as_the_definition(cell, norm, min_rows, shape):
    size, lengths = SHAPES[shape]
    _, B, _, H = size
    if cell.startswith("GRU") and "joint" in norm:
        pytest.skip("a GRU has no joint site")
    if norm != "none" and (H == 1 or (min_rows == 2 and (B == 1 or lengths))):
        pytest.skip("statistics of few numbers amplify rounding without bound")
    assert_as_good(rounded(cell, norm, size, lengths, min_rows))


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("resets", [0.0, 0.3])
@pytest.mark.parametrize("dropout", DROPOUTS)
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "GRU_BOTH", "RNN_TANH", "IndRNN_TANH", *PEEPHOLES])
def test_masks_resets_and_peepholes(cell, dropout, resets):
    problem = rounded(cell, "layer", (6, 9, 5, 21), dropout=dropout, resets=resets)
    assert_as_good(problem)


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("dropout", ["none", "every"])
@pytest.mark.parametrize("norm", ["none", "all", "layer"])
@pytest.mark.parametrize("units", [(32, 16), (21, 6), (50, 33)])
def test_a_projected_h(norm, dropout, units):
    hidden_size, proj_size = units
    shape = (6, 30, 9, hidden_size)
    assert_as_good(rounded("LSTM", norm, shape, dropout=dropout, proj_size=proj_size))


@pytest.mark.parametrize("norm", MORE_NORMS)
def test_more_norms_of_an_lstm(norm):
    assert_as_good(rounded("LSTM", norm, (4, 12, 6, 20)))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("norm", ["none", "all", "layer"])
@pytest.mark.parametrize("cell", [*CELLS, *MORE_CELLS])
@pytest.mark.parametrize("width", [1, 33, 64])
def test_few_rows_without_gradient(cell, norm, rows, width):
    problem = rounded(cell, norm, (2, rows, width, 37), min_rows=None)
    expected, _ = problem.run(reference.layer, problem.leaves)
    halves = {name: leaf.bfloat16() for name, leaf in problem.leaves.items()}
    with torch.no_grad():
        found, _ = problem.run(cpu.layer, halves)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=2e-2)


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("lengths", [None, [7, 5, 5, 2]], ids=("dense", "padded"))
@pytest.mark.parametrize(
    "dropout", [None, rnnorm.SequenceDropout(hidden=0.5), rnnorm.Zoneout(cell=0)]
)
@pytest.mark.parametrize("hidden_size", [5, 38, 64])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN", "IndRNN"])
def test_a_narrow_output_is_the_wide_one_rounded(monkeypatch, name, hidden_size, dropout, lengths):
    layer = getattr(rnnorm, name)(3, hidden_size, norm="layer", recurrent_dropout=dropout)
    x, reset = torch.randn(7, 4, 3), torch.rand(7, 4) < 0.2

    def results():
        torch.manual_seed(0)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            output, state = layer(x, lengths=lengths, reset=None if lengths else reset)
        return [output, *(state if name == "LSTM" else [state])]

    def record(*arguments):
        written.append(narrow.forward(*arguments).output.dtype)
        return narrow.forward(*arguments)

    written, narrow = [], cpu.NARROW_PASSES
    monkeypatch.setattr(cpu, "NARROW_PASSES", narrow._replace(forward=record))
    found = results()
    assert written == [torch.bfloat16 if library.multiplies_bfloat16() else torch.float32]
    monkeypatch.setattr(cpu, "NARROW_PASSES", cpu.PASSES)
    assert all(map(torch.equal, found, results()))


@pytest.mark.parametrize("cell", ["LSTM", "IndRNN_TANH"])
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_bits_do_not_depend_on_the_number_of_threads(threads, cell):
    problem = rounded(cell, "all", (11, 40, 9, 70))
    expected = problem.results(cpu.layer, torch.bfloat16)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found = problem.results(cpu.layer, torch.bfloat16)
    finally:
        torch.set_num_threads(before)
    for name, want in expected.items():
        assert torch.equal(found[name], want), name


@pytest.mark.skipif(not SMAPS.exists(), reason="only Linux lists where huge pages are asked for")
# float16 is computed in float32
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_no_huge_pages_are_asked_for_beyond_the_gradient_of_x(monkeypatch, dtype):
    found = []

    def with_room(*arguments):
        grads = allocate(*arguments)
        size = grads.x.nbytes
        room = mmap.mmap(-1, 2 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        x = torch.frombuffer(room, dtype=grads.x.dtype, count=grads.x.numel())
        # held, so that no other memory gets its addresses
        found.append((x, x.data_ptr() + size, x.data_ptr() + 2 * size))
        return grads._replace(x=x.view_as(grads.x))

    allocate = backward.allocate_gradients
    monkeypatch.setattr(backward, "allocate_gradients", with_room)
    layer = rnnorm.RNN(64, 1, dtype=dtype)
    # smaller gradients get no huge pages
    x = torch.zeros(80, 4096, 64, dtype=dtype, requires_grad=True)
    with rnnorm.use_backend("cpu"):
        output, _ = layer(x)
    output.sum().backward()
    ((_, end, end_of_room),) = found
    maps = SMAPS.read_text()
    for first, last, flags in re.findall(r"^(\w+)-(\w+) .*?^VmFlags:(.*?)$", maps, re.M | re.S):
        if int(first, 16) < end_of_room and int(last, 16) > end + mmap.PAGESIZE:
            assert "hg" not in flags.split()


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_no_less_accurate_than_torch(name):
    torch.manual_seed(0)
    theirs = getattr(torch.nn, name)(24, 64).bfloat16()
    ours = getattr(rnnorm, name)(24, 64).bfloat16()
    exact = getattr(torch.nn, name)(24, 64).double()
    ours.load_state_dict(theirs.state_dict())
    exact.load_state_dict(theirs.state_dict())
    x, upstream = torch.randn(20, 32, 24).bfloat16(), torch.randn(20, 32, 64).bfloat16()

    def results(layer, x):
        x = x.clone().requires_grad_()
        output, _ = layer(x)
        found = torch.autograd.grad(output, [x, *layer.parameters()], upstream.to(output))
        return [output.detach().double(), *[f.double() for f in found]]

    try:
        rivals = results(theirs, x)
    except RuntimeError as error:
        pytest.skip(f"torch has no such kernel for this processor: {error}")
    wanted = results(exact, x.double())
    with rnnorm.use_backend("cpu"):
        found = results(ours, x)
    for got, torchs, want in zip(found, rivals, wanted, strict=True):
        assert (got - want).norm() <= 1.1 * (torchs - want).norm()


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_under_autocast_gradients_of_gradients_are_finite(norm):
    layer, x = rnnorm.LSTM(5, 6, norm=norm), torch.randn(3, 4, 5, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = layer(x)
    (gradient,) = torch.autograd.grad(output.float().square().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    assert x.grad.isfinite().all()
    assert layer.weight_hh_l0.grad.isfinite().all()


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("norm", [None, "layer"])
def test_what_is_not_finite_stays_in_its_row(norm, value):
    layer = rnnorm.LSTM(5, 21, norm=norm).bfloat16()
    x = torch.randn(4, 3, 5).bfloat16()
    x[1, 1, 4] = value
    with rnnorm.use_backend("cpu"):
        output, _ = layer(x)
    assert output[:, [0, 2]].isfinite().all()
    assert output[0].isfinite().all()
    assert norm is None or output[1:, 1].isnan().all()


def test_float32_is_multiplied_where_the_build_has_no_bfloat16(monkeypatch):
    from rnnorm.kernels.cpu import c_struct

    problem = rounded("LSTM", "layer", (4, 5, 3, 20))
    wanted = problem.results(cpu.layer, torch.float32)
    monkeypatch.setattr(c_struct, "_BFLOAT16", False)
    found = problem.results(cpu.layer, torch.bfloat16)
    for name in ("output", "h_n", "c_n"):
        assert torch.equal(found[name], wanted[name].bfloat16()), name
    assert_same(found, wanted, 1e-2)
