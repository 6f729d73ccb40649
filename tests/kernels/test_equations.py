"""The trace of a cell's step, and the derivative that is made of it."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional

from rnnorm.cells.cell import Cell, Weights
from rnnorm.cells.clockwork import ClockworkRNN
from rnnorm.cells.gru import GRU
from rnnorm.cells.hmlstm import HMLSTM
from rnnorm.cells.lstm import LSTM
from rnnorm.cells.mirnn import MIRNN
from rnnorm.kernels.equations.derivative import adjoints
from rnnorm.kernels.equations.graph import Nodes
from rnnorm.kernels.equations.opaque import TraceError
from rnnorm.kernels.equations.trace import trace
from rnnorm.kernels.known_cells import CELLS


@dataclass(frozen=True)
class SLSTM(Cell):
    """The cell of Beck et al. 2024, with an exponential input gate."""

    heads: int = 4
    gates = (4,)
    states = ("h", "c", "n", "m")

    def step(self, weights, x_term, state, normalise, t):
        """Compute a step."""
        h, c, n, m = state
        i, f, z, o = self.preactivation(weights, x_term, h, normalise).chunk(4, 1)
        f = functional.logsigmoid(f) + m
        m = torch.maximum(f, i)
        i, f = torch.exp(i - m), torch.exp(f - m)
        c, n = f * c + i * torch.tanh(z), f * n + i
        h = torch.sigmoid(o) * c / n
        return h, (h, c, n, m)


BUILT_IN = [cell for alike in CELLS.values() for cell in alike]


def values_of(nodes, leaf):
    """Return the value of every node, in torch; ``leaf`` gives those of leaves."""
    values = []
    for name, inputs, value in nodes:
        given = [values[index] for index in inputs]
        if name == "number":
            values.append(torch.tensor(value, dtype=torch.float64))
        elif not inputs:
            values.append(leaf(name, value))
        elif name in ("candidate", "cell", "carry"):
            values.append(given[0])
        elif name.startswith("clamp"):
            values.append(getattr(torch, name)(given[0], given[1].item()))
        else:
            values.append(getattr(torch, name)(*given))
    return values


@pytest.mark.parametrize("cell", [*BUILT_IN, SLSTM(1), SLSTM(5)], ids=str)
def test_a_trace_computes_what_the_step_computes(cell):
    H, n = 5, 3
    torch.manual_seed(0)
    shapes = cell.weights(2, H, True)
    tensors = {k: torch.randn(shape, dtype=torch.float64) for k, shape in shapes.items()}
    own = {k: tensors.pop(k) for k in [*tensors] if k not in Weights._fields}
    weights = Weights(**tensors, own=own)
    x = torch.randn(n, sum(cell.gates) * H, dtype=torch.float64)
    state = tuple(torch.randn(n, H, dtype=torch.float64) for _ in cell.states)
    graph = trace(cell)
    w = weights.weight_hh
    h = state[0] * w if graph.independent else cell.product(state[0], w)
    terms = {"x": x, "h": h, "both": x + h}

    def leaf(name, value):
        if name in terms:
            return terms[name].chunk(sum(cell.gates), 1)[value]
        return state[value] if name == "state" else own[value]

    values = values_of(graph.nodes, leaf)
    _, after = cell.step(weights, x, state, lambda site, z: z, 0)
    for index, wanted in zip(graph.states, after, strict=True):
        torch.testing.assert_close(values[index], wanted)


def test_a_trace_knows_what_kernels_need():
    lstm, gru = trace(LSTM("all")), trace(GRU())
    assert lstm.weights == ["weight_ci", "weight_cf", "weight_co"]
    assert lstm.sites == ("candidate", "carry", "cell", "hidden", "joint", "recurrent")
    assert (lstm.separate, lstm.skips, lstm.gates) == (False, False, (4,))
    assert (gru.separate, gru.skips, gru.gates) == (True, True, (2, 1))
    assert trace(LSTM()).key == trace(LSTM(), 7).key != trace(LSTM("output")).key


def test_a_trace_has_all_states_and_the_heads():
    graph = trace(SLSTM(3))
    assert (len(graph.states), graph.heads, graph.product) == (4, 3, "weight_hh")
    assert graph.key != trace(SLSTM(1)).key


def test_a_product_of_other_heads_than_the_cells_is_refused():
    shapes = {"weight_ih": (64, 1), "weight_hh": (64, 16)}
    with pytest.raises(TraceError, match="which is not that of gates"):
        trace(SLSTM(2), 16, shapes)


@dataclass(frozen=True)
class Own(Cell):
    """A cell whose h is ``made`` of its two terms, h and weights."""

    made: object = None
    sites = ("input", "recurrent", "joint", "cell")

    def weights(self, input_size, hidden_size, bias):
        """Return the weights, with a vector."""
        return super().weights(input_size, hidden_size, bias) | {"u": (hidden_size,)}

    def step(self, weights, x_term, state, normalise, t):
        """Compute a step."""
        (h,) = state
        term = self.product(normalise("hidden", h), weights.weight_hh)
        h = self.made(x_term, term, h, weights, normalise, t)
        return h, (h,)


def unrecorded(h):
    """Return a gate that has no gradient."""
    with torch.no_grad():
        return torch.sigmoid(h)


class Reversed(torch.autograd.Function):
    """A function whose gradient is not its derivative."""

    @staticmethod
    def forward(ctx, z):
        """Compute in torch."""
        return torch.tanh(z)

    @staticmethod
    def backward(ctx, grad):
        """Turn the gradient round."""
        return -grad


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda x, z, h, w, n, t: x if (z > 0).any() else z, "any of a tensor cannot be compiled"),
        (lambda x, z, h, w, n, t: x if z > 0 else z, "decides by a value"),
        (lambda x, z, h, w, n, t: torch.erf(x + z), "erf cannot be compiled"),
        (lambda x, z, h, w, n, t: x + z * t, "reads t"),
        (lambda x, z, h, w, n, t: x if t & 1 else z, "reads t"),
        (lambda x, z, h, w, n, t: x + z * 0.9**t, "reads t"),
        (lambda x, z, h, w, n, t: z + x * (w.weight_ih @ w.weight_hh), "computes with weight_ih"),
        (lambda x, z, h, w, n, t: x + z * torch.rand(1), "a tensor that is no weight"),
        (lambda x, z, h, w, n, t: x + z + Cell().product(x, w.weight_ih), "weight_ih, is not one"),
        (
            lambda x, z, h, w, n, t: z + Cell().product(h, w.weight_hh),
            "products of 1 and 1 gates, which are not the blocks",
        ),
        (lambda x, z, h, w, n, t: n("recurrent", n("recurrent", z)) + x, "'recurrent' twice"),
        (lambda x, z, h, w, n, t: n("recurrent", z) * z + x, "beside its normalised term"),
        (lambda x, z, h, w, n, t: n("joint", x + z) * z, "beside their normalised sum"),
        (lambda x, z, h, w, n, t: n("joint", x) * h, "normalises the input term as the sum"),
        (lambda x, z, h, w, n, t: n("cell", torch.cat((x, z), 1)), "the site 'cell' is not one of"),
        (lambda x, z, h, w, n, t: x + z * z.size(0), "number of rows"),
        (lambda x, z, h, w, n, t: (x + z)[:, :3], "by 3, which is not a share of its units"),
        (lambda x, z, h, w, n, t: (x + z)[:, : h.size(1) // 2], "not whole gates"),
        (lambda x, z, h, w, n, t: (x + z).split(16, 1)[0], "by 16, which is not a share"),
        (lambda x, z, h, w, n, t: x + z * h.size(1) ** -0.5, "computes with the number of units"),
        (lambda x, z, h, w, n, t: x + z / math.sqrt(h.shape[1]), "with the number of units"),
        (lambda x, z, h, w, n, t: x + z * h.size(1), "with the number of units"),
        (lambda x, z, h, w, n, t: x if h.size(1) > 64 else z, "with the number of units"),
        (lambda x, z, h, w, n, t: x + z * w.weight_ih.size(1), "the number of features"),
        (lambda x, z, h, w, n, t: x + z if h.dtype == torch.float64 else x, "reads a dtype"),
        (lambda x, z, h, w, n, t: x.to(torch.float32) + z, "changes a dtype"),
        (lambda x, z, h, w, n, t: x + z * unrecorded(h), "where autograd records nothing"),
        (lambda x, z, h, w, n, t: Reversed.apply(x + z), "where autograd records nothing"),
        (lambda x, z, h, w, n, t: x + z > 0, "a state is a number or a comparison"),
        (lambda x, z, h, w, n, t: torch.zeros_like(x + z), "a state is a number or a comparison"),
        (lambda x, z, h, w, n, t: n("candidate", x + z > 0), "'candidate' gets a comparison"),
        (lambda x, z, h, w, n, t: (x + z)[:1], "row by row"),
        (lambda x, z, h, w, n, t: x + (z > 0), "computes with a comparison"),
        (lambda x, z, h, w, n, t: torch.where((x > 0) & z, x, z), "numbers that are not a comp"),
        (lambda x, z, h, w, n, t: (x > 0) * (z > 0) * x, "computes with a comparison"),
        (lambda x, z, h, w, n, t: x // 2 + z, "floordiv of a tensor cannot be compiled"),
        # torch 2.6 refuses it by itself
        (lambda x, z, h, w, n, t: torch.full_like(x, h), "takes a number out|must be Number"),
        (lambda x, z, h, w, n, t: (x + z) ** 2.5, "a power other than"),
        (lambda x, z, h, w, n, t: functional.relu(x + z, inplace=True), "in place"),
        (lambda x, z, h, w, n, t: (x + z).relu_(), "relu_ of a tensor cannot be compiled"),
        (lambda x, z, h, w, n, t: float(x), "a number out of a tensor"),
        (lambda x, z, h, w, n, t: 1.0, "not H columns wide"),
        (lambda x, z, h, w, n, t: x.missing(z), "missing of a tensor cannot be compiled"),
        (lambda x, z, h, w, n, t: [][0], "raised IndexError"),
    ],
)
def test_what_a_trace_cannot_say_is_refused_with_its_reason(made, reason):
    with pytest.raises(TraceError, match=reason):
        trace(Own(made))


@pytest.mark.parametrize("shape", [(), (1,), (3,), (16, 16)])
def test_a_weight_of_another_shape_than_the_units_is_named(shape):
    class Scaled(Own):
        def weights(self, input_size, hidden_size, bias):
            return super().weights(input_size, hidden_size, bias) | {"tau": shape}

    for made in (
        lambda x, z, h, w, n, t: x + z * w.own["tau"],
        lambda x, z, h, w, n, t: x + torch.sigmoid(w.own["tau"]) * z,
    ):
        with pytest.raises(TraceError, match="computes with tau, which has not one number for"):
            trace(Scaled(made))


def test_prepare_may_multiply_matrices():
    class LowRank(Own):
        def weights(self, input_size, hidden_size, bias):
            own = {"u": (hidden_size, 2), "v": (2, hidden_size)}
            return super().weights(input_size, hidden_size, bias) | own

        def prepare(self, weights):
            return weights._replace(weight_hh=weights.own["u"] @ weights.own["v"])

    assert trace(LowRank(lambda x, z, h, w, n, t: x + z)).product == "weight_hh"


def test_weights_that_are_made_by_a_decision_are_refused():
    class Deciding(Own):
        def prepare(self, weights):
            return weights._replace(own={}) if weights.weight_hh.sum() > 0 else weights

    with pytest.raises(TraceError, match="prepare raised"):
        trace(Deciding(lambda x, z, h, w, n, t: x + z))


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (LSTM("full"), "products of 4 and 1 gates, which are not the blocks"),
        (ClockworkRNN((1, 2)), "reads_frames"),
        (HMLSTM(), "reads_frames"),
    ],
    ids=str,
)
def test_built_in_cells_beyond_the_class_are_refused(cell, reason):
    with pytest.raises(TraceError, match=reason):
        trace(cell)


def test_a_site_with_another_value_than_a_term_is_noted():
    graph = trace(MIRNN())
    assert (graph.sites, graph.passed) == (("hidden", "recurrent"), ("joint",))
    assert trace(Own(lambda x, z, h, w, n, t: n("other", x + z))).passed == ("other",)


NAN = math.nan
A = torch.tensor([-2.0, -0.5, 0.0, 0.5, 0.5, 1.0, 3.0, 25.0, NAN, 1.0], dtype=torch.float64)
B = torch.tensor([-1.0, -0.5, 0.0, 0.5, 2.0, -1.0, 0.3, 30.0, 1.0, NAN], dtype=torch.float64)
OPERATORS = {
    "sum": lambda a, b: a + 2 * b - 1,
    "difference": lambda a, b: 1 - a - b,
    "product": lambda a, b: a * b * a,
    "quotient": lambda a, b: a / (b * b + 1) + 1 / (a * a + 1),
    "negation": lambda a, b: -a,
    "sigmoid": lambda a, b: torch.sigmoid(a),
    "tanh": lambda a, b: a.tanh(),
    "relu": lambda a, b: torch.relu(a) + functional.relu(b),
    "exp": lambda a, b: torch.exp(a) * b,
    "log": lambda a, b: torch.log(a * a + 0.5),
    "log1p": lambda a, b: torch.log1p(a * a),
    "sqrt": lambda a, b: torch.sqrt(a * a + 0.25) + torch.rsqrt(b * b + 1),
    "abs": lambda a, b: abs(a) + b.abs(),
    "minimum": lambda a, b: torch.minimum(a, b),
    "maximum": lambda a, b: torch.maximum(a, b),
    "where": lambda a, b: torch.where(a < b, a * a, b) + torch.where(a >= 0.5, b, 0.0),
    "lerp": lambda a, b: torch.lerp(a, b, weight=torch.sigmoid(a)),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5),
    "square": lambda a, b: a.square() + torch.reciprocal(b * b + 1),
    "logsigmoid": lambda a, b: functional.logsigmoid(a),
    "softplus": lambda a, b: functional.softplus(a) + functional.softplus(400 * b),
    "comparison": lambda a, b: (a > b).to(a.dtype) * a,
    "both": lambda a, b: torch.where((a > 0) & (b < 1), a, b) + torch.logical_and(a < b, b > 0) * b,
    "either": lambda a, b: torch.where((a > 0) | (b < 1), a, b),
    "not": lambda a, b: torch.where(~(a > b), a, b) + (~(a == b)).type_as(a) * a,
    "mask": lambda a, b: a * (b > 0.5) + (a <= 0) * b,
    "hardtanh": lambda a, b: functional.hardtanh(a) + functional.hardtanh(b, -0.5, 2.0),
    "leaky_relu": lambda a, b: functional.leaky_relu(a, 0.2) + functional.leaky_relu(b),
    "softsign": lambda a, b: functional.softsign(a),
    "full_like": lambda a, b: torch.full_like(a, 0.5) * b,
    "silu": lambda a, b: functional.silu(a),
    "clamp": lambda a, b: a.clamp(-0.5, 1.0) + torch.clamp(b, min=0.5) + torch.clamp(b, max=2),
    "pow": lambda a, b: a**3 + torch.pow(b * b + 1, -2) + (a * a + 1) ** 0.5,
    "rsub": lambda a, b: torch.rsub(a, b),
}


@pytest.mark.parametrize("missing", [False, True], ids=["", "gradients of nan"])
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_has_the_value_and_derivative_of_torch(name, missing):
    function = OPERATORS[name]
    graph = trace(Own(lambda x, z, h, w, n, t: function(x, h) + 0 * z))
    nodes = Nodes(graph.nodes)
    seed = nodes.add("grad")
    found = adjoints(nodes, {graph.states[0]: seed})
    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    wanted = function(a, b)
    grad = torch.linspace(0.5, 1.5, len(A), dtype=torch.float64)
    if missing:
        grad[2::3] = NAN
    gradients = torch.autograd.grad(wanted, (a, b), grad, allow_unused=True)
    leaves = {"x": A, "state": B, "grad": grad, "h": torch.zeros_like(A)}
    values = values_of(nodes, lambda leaf, _: leaves[leaf])
    torch.testing.assert_close(values[graph.states[0]], wanted.detach(), equal_nan=True)
    for leaf, gradient in zip(("x", "state"), gradients, strict=True):
        index = next((p for p, n in enumerate(graph.nodes) if n.name == leaf), None)
        if gradient is not None:
            assert index is not None
            torch.testing.assert_close(values[found[index]], gradient, equal_nan=True)
