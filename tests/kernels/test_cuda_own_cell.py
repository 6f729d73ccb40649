"""Users' cells on the kernels in CUDA C++, on a GPU or an emulated one, against the definition."""

import copy
import ctypes
import math
import random
import subprocess

import emulated
import pytest
import torch
from compiled_cells import CELLS, NORMS, UNITS, OwnLSTM
from gpu_or_interpreter import DEVICE, INTERPRETED
from problems import errors
from test_cuda_kernels import launched as launched

import rnnorm
from rnnorm import Zoneout
from rnnorm.kernels import own_cell
from rnnorm.kernels.cuda.equations import text_of
from rnnorm.kernels.cuda.layer import _whole
from rnnorm.kernels.equations.trace import trace
from rnnorm.kernels.run_time_compilation import SWITCH


@pytest.fixture(autouse=True)
def _compiling(monkeypatch):
    monkeypatch.setenv(SWITCH, "1")


RAGGED = {"lengths": [5, 4, 4, 1]}
RESETS = {**RAGGED, "reset": 0.3}
DROPPED = {"recurrent_dropout": Zoneout(hidden=0.3, cell=0.2)}
HIDDEN = {"recurrent_dropout": rnnorm.SequenceDropout(hidden=0.3)}
# how cells are called, and the options of their layers
CASES = {
    "slstm": ("slstm", "none", RAGGED, {}),
    "slstm-batch": ("slstm", "batch", {}, {}),
    "slstm-joint-resets": ("slstm", "joint", RESETS, {}),
    "three-layer": ("three", "layer", RESETS, {}),
    "far-batch": ("far", "batch", RAGGED, {}),
    "peephole-gate": ("peephole", "gate", RESETS, {}),
    "leaky-layer": ("leaky", "layer", RAGGED, {}),
    "leaky-sequence": ("leaky", "sequence", {}, {}),
    "gru-batch": ("gru", "batch", RAGGED, {}),
    "gru-hidden": (
        "gru",
        "gate",
        RESETS,
        {"recurrent_dropout": rnnorm.SequenceDropout(hidden=0.3)},
    ),
    "mirnn-layer": ("mirnn", "layer", RESETS, {}),
    "milstm-batch": ("milstm", "batch", RAGGED, {}),
    "two": ("two", "none", RESETS, {}),
    "two-batch": ("two", "batch", RAGGED, HIDDEN),
    "reset": ("reset", "none", {}, {}),
    "reset-batch": ("reset", "batch", RAGGED, HIDDEN),
    "reset-gate": ("reset", "gate", RESETS, HIDDEN),
    "reset-layer": ("reset", "layer", RESETS, {"recurrent_dropout": Zoneout(cell=0.0, hidden=0.3)}),
    "reset-joint": ("reset", "joint", RAGGED, {}),
    "lstm-carry": ("lstm", "carry", RAGGED, DROPPED),
    "lstm-candidate": ("lstm", "layer", RESETS, {"recurrent_dropout": rnnorm.CellDropout(p=0.3)}),
}


class OneGate(rnnorm.Cell):
    """A cell with one gate and three weights by unit, two states, and every kind of operator."""

    states = ("h", "c")
    sites = ("input", "recurrent", "joint", "cell")
    dropouts = ("hidden", "zoneout_h", "zoneout_c")
    bounds = dict.fromkeys(("p", "q", "r"), (0.2, 0.8))

    def weights(self, input_size, hidden_size, bias):
        own = dict.fromkeys(self.bounds, (hidden_size,))
        return super().weights(input_size, hidden_size, bias) | own

    def step(self, weights, x_term, state, normalise, t):
        h, c = state
        p, q, r = (weights.own[name] for name in self.bounds)
        z = self.preactivation(weights, x_term, h, normalise)
        c = (
            torch.where((z > 0) & ~(c > 2), torch.minimum(p * z, c + 1), torch.exp(-z.abs()) - 1)
            + q * c
        )
        h = 0.5 * torch.nn.functional.softplus(normalise("cell", c).clamp(-2, 2)) + r * h
        return h, (h, c)


def results(model, x, backend, dtype, **given):
    """Results, gradients of x and of all parameters, and statistics."""
    model, x = copy.deepcopy(model).to(dtype), x.to(dtype).requires_grad_()
    torch.manual_seed(1)
    with rnnorm.use_backend(backend):
        output, *states = model(x, **given)
    found = [output, *(s for each in states for s in (each if type(each) is tuple else (each,)))]
    generator = torch.Generator().manual_seed(2)
    weights = [torch.randn(f.shape, generator=generator).to(f) for f in found]
    loss = sum((f * w).sum() for f, w in zip(found, weights, strict=True))
    names = dict(model.named_parameters())
    grads = torch.autograd.grad(loss, [x, *names.values()])
    named = zip(["x", *names], grads, strict=True)
    every = {**dict(enumerate(found)), **dict(named), **dict(model.named_buffers())}
    return {name: found.detach().double() for name, found in every.items()}


def check(kind, norm, given, options, dtype, factor, cell=None, rows=4):
    torch.manual_seed(0)
    cell = CELLS[kind]() if cell is None else cell
    model = rnnorm.Recurrent(
        cell, 3, UNITS.get(kind, 9), norm=NORMS[norm], initial_noise=0.0, **options
    ).to(DEVICE)
    x = torch.randn(5, rows, 3, device=DEVICE).to(dtype)
    if "reset" in given:
        if norm in ("batch", "carry"):
            model.eval()
        given = {**given, "reset": torch.rand(5, 4, device=DEVICE) < given["reset"]}
    expected = results(model.to(dtype), x, "reference", torch.float64, **given)
    found = results(model, x, "cuda", dtype, **given)
    own = errors(results(model, x, "reference", dtype, **given), expected)
    for name, error in errors(found, expected).items():
        assert error <= factor * max(own.values()) + 1e-6, name


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("case", CASES)
def test_they_are_those_of_the_reference(case, launched):
    check(*CASES[case], torch.float32, 12)
    assert {variant.backward for variant, _ in launched} == {False, True}


@pytest.mark.usefixtures("launched", "fresh_memory_is_nan")
@pytest.mark.parametrize(("kind", "norm"), [("slstm", "batch"), ("three", "layer")])
def test_states_of_all_steps(kind, norm):
    check(kind, norm, {**RAGGED, "return_states": True}, {}, torch.float32, 12)


@pytest.mark.usefixtures("launched", "fresh_memory_is_nan")
def test_every_operator_with_one_gate_and_three_weights():
    check("", "layer", RESETS, DROPPED, torch.float32, 12, OneGate())


@pytest.mark.skipif(not INTERPRETED, reason="this GPU is another")
@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_two_products_of_many_rows_without_copies_of_chunks(norm, monkeypatch, tmp_path):
    launched = emulated.on_cpu(monkeypatch, tmp_path, 2, "sm_80")
    check("reset", norm, {}, HIDDEN, torch.bfloat16, 4, rows=70)
    # a thread has several rows
    assert all(not layout.bulk and layout.row_warps == 8 for _, layout in launched)


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_with_an_h_that_is_read_and_a_row_normalised_state(dtype):
    check("", "layer", RAGGED, DROPPED, dtype, 4, OneGate())


@pytest.mark.usefixtures("launched")
def test_what_they_do_not_run_is_refused():
    class Decides(rnnorm.Cell):
        def step(self, weights, x_term, state, normalise, t):
            h = torch.tanh(self.preactivation(weights, x_term, state[0], normalise))
            h = h if (h > 0) else -h
            return h, (h,)

    class Random(rnnorm.Cell):
        def step(self, weights, x_term, state, normalise, t):
            h = torch.tanh(self.preactivation(weights, x_term, state[0], normalise))
            h = h * random.random()
            return h, (h,)

    class Inplace(rnnorm.Cell):
        def step(self, weights, x_term, state, normalise, t):
            h = torch.tanh(self.preactivation(weights, x_term, state[0], normalise)).mul_(2)
            return h, (h,)

    class Rectified(rnnorm.Cell):
        def step(self, weights, x_term, state, normalise, t):
            h = torch.relu(self.preactivation(weights, x_term, state[0], normalise))
            return h, (h,)

    class Wide(rnnorm.Cell):
        gates = (5,)

        def step(self, weights, x_term, state, normalise, t):
            gates = self.preactivation(weights, x_term, state[0], normalise).chunk(5, 1)
            h = torch.tanh(gates[0] + gates[1] + gates[2] + gates[3] + gates[4])
            return h, (h,)

    x = torch.randn(3, 2, 4, device=DEVICE)
    for cell, why in {
        Decides(): "it decides by a value",
        Random(): "its equations change at each call",
        Inplace(): "mul_ of a tensor cannot be compiled",
        Rectified(): "it multiplies h of relu in tf32 alone",
        Wide(): "it has 5 gates, of which the kernel has 4 at most",
        rnnorm.IndRNN(4, 5).cell: "it has no IndRNN",
    }.items():
        layer = rnnorm.Recurrent(cell, 4, 5, device=DEVICE)
        with rnnorm.use_backend("cuda"), pytest.raises(RuntimeError, match=why):
            layer(x)


def test_unasked_they_are_not_traced(launched, monkeypatch):
    layer = rnnorm.Recurrent(OwnLSTM(), 3, 5, norm="layer", device=DEVICE)
    monkeypatch.setattr(own_cell, "trace", lambda *_: pytest.fail("a step was traced"))
    with rnnorm.use_backend("reference"):
        layer(torch.randn(3, 2, 3, device=DEVICE))
    assert not launched


def test_heads_as_one_matrix():
    weight = torch.randn(3 * 8, 2)
    h = torch.randn(5, 8)
    expected = rnnorm.cells.cell.product_of_heads(h, weight, 4)
    torch.testing.assert_close(h @ _whole(weight, 4).t(), expected)


def graphs():
    """Those of the cells that the kernels run, by name."""
    found = {kind: trace(cell()) for kind, cell in CELLS.items()}
    return {k: graph for k, graph in found.items() if not graph.independent}


@pytest.mark.parametrize(("kind", "graph"), graphs().items(), ids=graphs())
def test_equations_are_computed_once_on_each_way(kind, graph):
    graph_cell = own_cell.cell_of(graph._replace(heads=1))
    weights = tuple(range(len({*graph_cell.names})))
    text = text_of(graph_cell.option, weights)
    back = text[text.index("float to_site") :]
    # what costs much is kept from the way forward
    assert not any(name in back for name in ("sigmoid", "tanh_", "exponential", "log1pf"))


_FUNCTIONS = """
#include "device.h"
#include "functions.cuh"
extern "C" void apply(const float* x, const float* y, float* to, int n) {
  for (int i = 0; i < n; ++i, to += 5) {
    to[0] = rectifier(x[i]), to[1] = minimum(x[i], y[i]), to[2] = maximum(x[i], y[i]);
    to[3] = sigmoid(x[i]), to[4] = tanh_(x[i]);
  }
}
"""


def test_functions_are_torchs_at_the_edges(tmp_path):
    (tmp_path / "functions.cpp").write_text(_FUNCTIONS)
    library = tmp_path / "functions.so"
    options = ["-std=c++20", "-fPIC", "-shared", "-w", "-DPRECISION=FP32"]
    folders = [f"-I{emulated.HERE}", f"-I{emulated.SOURCES}"]
    command = ["g++", *options, *folders, tmp_path / "functions.cpp", "-o", library]
    subprocess.run(command, check=True)
    edges = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -2.5, 90.0, -90.0])
    x, y = torch.cartesian_prod(edges, edges).t().contiguous()
    found = torch.empty(len(x), 5)
    pointers = [ctypes.c_void_p(each.data_ptr()) for each in (x, y, found)]
    ctypes.CDLL(str(library)).apply(*pointers, len(x))
    expected = [x.relu(), torch.minimum(x, y), torch.maximum(x, y), x.sigmoid(), x.tanh()]
    torch.testing.assert_close(found.t(), torch.stack(expected), equal_nan=True)
