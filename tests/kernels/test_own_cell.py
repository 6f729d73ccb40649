"""Users' cells, compiled for the CPU kernel at their first call, beside the reference."""

import contextlib
import copy
import functools
import logging
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
import torch
from torch.nn.utils import parametrize

import rnnorm
from rnnorm import BatchNorm, Zoneout
from rnnorm.cells.gru import GRU
from rnnorm.kernels import dispatch, own_cell, run_time_compilation
from rnnorm.kernels.cpu import compiler, library
from rnnorm.kernels.cpu import layer as cpu
from rnnorm.kernels.cuda import own_frame
from rnnorm.kernels.equations.opaque import TraceError
from rnnorm.kernels.equations.trace import trace
from rnnorm.layers.call import short_call


@pytest.fixture(scope="module", autouse=True)
def compiling(tmp_path_factory):
    """One cache for all tests, as each cell takes seconds."""
    if library.UNAVAILABLE:
        pytest.skip(library.UNAVAILABLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(compiler.SWITCH, "1")
        patch.setenv(run_time_compilation.FOLDER, str(tmp_path_factory.mktemp("cells")))
        if reason := compiler.unavailable():
            pytest.skip(reason)
        yield


class OwnLSTM(rnnorm.Cell):
    gates = (4,)
    states = ("h", "c")
    sites = ("input", "recurrent", "joint", "cell", "carry")
    dropouts = ("hidden", "candidate", "zoneout_h", "zoneout_c")

    def step(self, weights, x_term, state, normalise, t):
        h, c = state
        i, f, g, o = self.preactivation(weights, x_term, h, normalise).chunk(4, 1)
        g = normalise("candidate", torch.tanh(g))
        c = normalise("carry", torch.sigmoid(f) * c + torch.sigmoid(i) * g)
        h = torch.sigmoid(o) * torch.tanh(normalise("cell", c))
        return h, (h, c)


class OwnGRU(rnnorm.Cell):
    gates = (2, 1)
    sites = ("input", "recurrent")
    dropouts = ("hidden", "candidate", "zoneout_h")

    def shifts(self, weights, sites):
        biases = {"input": weights.bias_ih, "recurrent": weights.bias_hh}
        return {site: bias for site, bias in biases.items() if bias is not None}

    def step(self, weights, x_term, state, normalise, t):
        (h,) = state
        H = h.size(1)
        term = normalise("recurrent", self.product(normalise("hidden", h), weights.weight_hh))
        r, z = torch.sigmoid(x_term[:, : 2 * H] + term[:, : 2 * H]).chunk(2, 1)
        n = normalise("candidate", torch.tanh(x_term[:, 2 * H :] + r * term[:, 2 * H :]))
        h = torch.lerp(n, h, z)
        return h, (h,)


class Leaky(rnnorm.Cell):
    """An Elman cell with a rate of its own for each unit."""

    bounds: ClassVar = {"rate": (0.2, 0.8)}

    def weights(self, input_size, hidden_size, bias):
        return super().weights(input_size, hidden_size, bias) | {"rate": (hidden_size,)}

    def step(self, weights, x_term, state, normalise, t):
        (h,) = state
        z = self.preactivation(weights, x_term, h, normalise)
        h = h + weights.own["rate"] * (torch.tanh(z) - h)
        return h, (h,)


class SLSTM(rnnorm.Cell):
    """The cell of Beck et al. 2024: four heads, an exponential input gate and four states."""

    gates = (4,)
    states = ("h", "c", "n", "m")
    heads = 4

    def step(self, weights, x_term, state, normalise, t):
        h, c, n, m = state
        i, f, z, o = self.preactivation(weights, x_term, h, normalise).chunk(4, 1)
        f = torch.nn.functional.logsigmoid(f) + m
        m = torch.maximum(f, i)
        i, f = torch.exp(i - m), torch.exp(f - m)
        c, n = f * c + i * torch.tanh(z), f * n + i
        h = torch.sigmoid(o) * c / n
        return h, (h, c, n, m)


class PeepholeLSTM(OwnLSTM):
    """An LSTM whose gates see c by one weight of two gates, and by another of one."""

    sites = ("input", "recurrent", "joint", "cell")
    bounds: ClassVar = {"p": (-1, 1), "q": (-1, 1)}

    def weights(self, input_size, hidden_size, bias):
        own = {"p": (2 * hidden_size,), "q": (hidden_size,)}
        return super().weights(input_size, hidden_size, bias) | own

    def step(self, weights, x_term, state, normalise, t):
        h, c = state
        i, f, g, o = self.preactivation(weights, x_term, h, normalise).chunk(4, 1)
        p_i, p_f = weights.own["p"].chunk(2)
        g = normalise("candidate", torch.tanh(g))
        c = torch.sigmoid(f + p_f * c) * c + torch.sigmoid(i + p_i * c) * g
        seen = normalise("cell", c)
        h = torch.sigmoid(o + weights.own["q"] * seen) * torch.tanh(seen)
        return h, (h, c)


class FarFromZero(rnnorm.Cell):
    """A cell whose state is not zero where its terms are, and has no gradient there."""

    gates = (2,)
    states = ("h", "c")
    sites = ("input", "recurrent", "joint", "cell")

    def step(self, weights, x_term, state, normalise, t):
        z, g = self.preactivation(weights, x_term, state[0], normalise).chunk(2, 1)
        c = torch.sigmoid(g) + torch.sqrt(z * z)
        h = 0.5 * torch.tanh(normalise("cell", c))
        return h, (h, c)


class ThreeStates(rnnorm.Cell):
    """A cell whose normalised state reads another state, which h reads too."""

    states = ("h", "c", "d")
    sites = ("input", "recurrent", "joint", "cell")

    def step(self, weights, x_term, state, normalise, t):
        h, c, d = state
        z = self.preactivation(weights, x_term, h, normalise)
        c, new = torch.tanh(0.5 * c + 0.5 * d * z), torch.tanh(z + 0.5 * d)
        h = torch.tanh(normalise("cell", c)) + 0.3 * d
        return h, (h, c, new)


class SRU(rnnorm.Cell):
    """The cell of Lei et al. 2018: gates see c by a weight, h is read by nothing."""

    gates = (4,)
    states = ("h", "c")
    sites = ("input", "joint", "cell")

    def weights(self, input_size, hidden_size, bias):
        shapes = {"weight_ih": (4 * hidden_size, input_size), "v": (2 * hidden_size,)}
        return shapes | ({"bias_ih": (4 * hidden_size,)} if bias else {})

    def units(self, weights):
        return weights.own["v"].size(0) // 2

    def step(self, weights, x_term, state, normalise, t):
        _, c = state
        z, f, r, passed = normalise("joint", x_term).chunk(4, 1)
        v_f, v_r = weights.own["v"].chunk(2)
        r = torch.sigmoid(r + v_r * c)
        c = torch.lerp(z, c, torch.sigmoid(f + v_f * c))
        h = torch.lerp(passed, normalise("cell", c), r)
        return h, (h, c)


class MinGRU(rnnorm.Cell):
    """The minimal GRU of Feng et al. 2024, without a recurrent product and with its weight_hh."""

    gates = (2,)
    sites = ("input",)
    dropouts = ("candidate", "zoneout_h")

    def step(self, weights, x_term, state, normalise, t):
        z, n = x_term.chunk(2, 1)
        h = torch.lerp(state[0], normalise("candidate", n), torch.sigmoid(z))
        return h, (h,)


class Crossing(rnnorm.Cell):
    """A cell whose h reads four values beside the normalised state, its term and x."""

    gates = (2, 2)
    states = ("h", "c")
    sites = ("input", "recurrent", "joint", "cell")

    def step(self, weights, x_term, state, normalise, t):
        h, c = state
        a, b, d, e = self.preactivation(weights, x_term, h, normalise).chunk(4, 1)
        c = torch.sigmoid(a) * c + torch.tanh(b) * torch.sigmoid(d)
        seen = normalise("cell", c)
        h = torch.sigmoid(a) * torch.tanh(seen + torch.tanh(b)) + d * torch.exp(-seen * seen) + e
        h = 0.5 * torch.tanh(h)
        return h, (h, c)


class Prepared(rnnorm.Cell):
    """A leaky cell whose matrix has norm 1, and whose rate is between 0 and 1."""

    def weights(self, input_size, hidden_size, bias):
        return super().weights(input_size, hidden_size, bias) | {"raw": (hidden_size,)}

    def prepare(self, weights):
        rate = torch.sigmoid(weights.own["raw"])
        unit = weights.weight_hh / torch.linalg.matrix_norm(weights.weight_hh)
        return weights._replace(weight_hh=unit, own={"rate": rate})

    def step(self, weights, x_term, state, normalise, t):
        z = self.preactivation(weights, x_term, state[0], normalise)
        h = torch.lerp(state[0], torch.tanh(z), weights.own["rate"])
        return h, (h,)


class TwoProducts(rnnorm.Cell):
    """An LSTM whose gates read h through a gate of its own, as a mogrifier's."""

    gates = (1, 4)
    states = ("h", "c")
    sites = ("input", "recurrent", "recurrent_gates")
    dropouts = ("hidden", "candidate", "zoneout_h", "zoneout_c")

    def weights(self, input_size, hidden_size, bias):
        shapes = super().weights(input_size, hidden_size, bias)
        square = (hidden_size, hidden_size)
        return shapes | {"weight_hh": (4 * hidden_size, hidden_size), "weight_q": square}

    def units(self, weights):
        return weights.weight_hh.size(1)

    def blocks(self, site, hidden_size):
        counts = {"recurrent": (1,), "recurrent_gates": (4,)}.get(site, self.gates)
        return [hidden_size * count for count in counts]

    def step(self, weights, x_term, state, normalise, t):
        h, c = normalise("hidden", state[0]), state[1]
        H = h.size(1)
        q = normalise("recurrent", self.product(h, weights.own["weight_q"]))
        h = 2 * torch.sigmoid(x_term[:, :H] + q) * h
        term = normalise("recurrent_gates", self.product(h, weights.weight_hh))
        i, f, g, o = (x_term[:, H:] + term).chunk(4, 1)
        g = normalise("candidate", torch.tanh(g))
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * g
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)


CELLS = {
    "two": TwoProducts,
    "reset": functools.partial(GRU, False),
    "prepared": Prepared,
    "crossing": Crossing,
    "sru": SRU,
    "mingru": MinGRU,
    "three": ThreeStates,
    "far": FarFromZero,
    "lstm": OwnLSTM,
    "gru": OwnGRU,
    "leaky": Leaky,
    "slstm": SLSTM,
    "peephole": PeepholeLSTM,
}
# not a multiple of the width of vectors, unless heads need it
UNITS = {"slstm": 20}
JOINT = {"input": False, "recurrent": False}
NORMS = {
    "none": None,
    "batch": "batch",
    "sequence": BatchNorm(input="sequence"),
    "layer": "layer",
    "gate": rnnorm.RMSNorm(over="gate"),
    "term": rnnorm.LayerNorm(over="term"),
    "joint": rnnorm.LayerNorm(**JOINT, joint=True),
    "joint term": rnnorm.RMSNorm(**JOINT, joint=True, over="term"),
    "carry": BatchNorm(cell=None, carry="frame"),
}


def cases():
    for kind in CELLS:
        for norm in NORMS:
            if norm.startswith("joint") and "joint" not in CELLS[kind]().sites:
                continue
            if norm == "carry" and kind != "lstm":
                continue
            yield pytest.param(kind, norm, id=f"{kind}-{norm}")


def layer(kind, norm=None, **options):
    torch.manual_seed(0)
    options = {"dtype": torch.float64, "initial_noise": 0.0} | options
    return rnnorm.Recurrent(CELLS[kind](), 3, UNITS.get(kind, 18), norm=norm, **options)


def run(model, x, backend, **given):
    """Return a call's results, and gradients of x and of all parameters."""
    model = copy.deepcopy(model)
    x = x.clone().requires_grad_()
    torch.manual_seed(1)
    before = dispatch.calls[backend]
    if backend == "reference":
        with rnnorm.use_backend(backend):
            output, state = model(x, **given)
    else:
        output, state = model(x, **given)
    assert dispatch.calls[backend] == before + 1
    results = [output, *(state if isinstance(state, tuple) else (state,))]
    generator = torch.Generator().manual_seed(2)
    weights = [torch.randn(r.shape, generator=generator, dtype=torch.float64) for r in results]
    loss = sum((r * w).sum() for r, w in zip(results, weights, strict=True))
    grads = torch.autograd.grad(loss, [x, *model.parameters()], allow_unused=True)
    names = ["x", *dict(model.named_parameters())]
    buffers = dict(model.named_buffers())
    return dict(enumerate(results)) | dict(zip(names, grads, strict=True)) | buffers


def compare(model, x, **given):
    mine, reference = run(model, x, "cpu", **given), run(model, x, "reference", **given)
    for name, value in reference.items():
        if value is None:
            assert mine[name] is None, name
            continue
        scale = max(1.0, value.abs().max().item())
        torch.testing.assert_close(
            mine[name], value, rtol=0, atol=1e-12 * scale, msg=lambda text, n=name: f"{n}: {text}"
        )


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize(("kind", "norm"), [*cases()])
def test_values_gradients_and_statistics_are_those_of_the_reference(kind, norm):
    compare(layer(kind, NORMS[norm]), draw(5, 4, 3))


def test_a_state_that_the_normalised_one_and_h_read():
    compare(
        rnnorm.Recurrent(ThreeStates(), 3, 18, norm="layer", dtype=torch.float64), draw(5, 4, 3)
    )


@pytest.mark.parametrize("kind", CELLS)
def test_rows_of_different_lengths(kind):
    compare(layer(kind, "batch", num_layers=2), draw(6, 4, 3), lengths=[6, 2, 5, 2])


@pytest.mark.parametrize("kind", CELLS)
def test_rows_that_begin_anew(kind):
    compare(layer(kind, "layer"), draw(6, 4, 3), reset=draw(6, 4) > 0.5)


@pytest.mark.parametrize("kind", CELLS)
def test_evaluation_by_the_population(kind):
    model = layer(kind, "batch")
    model(draw(5, 8, 3))
    compare(model.eval(), draw(7, 4, 3))


@pytest.mark.parametrize(
    ("kind", "site"), [("two", "recurrent_gates"), ("reset", "recurrent"), ("gru", "input")]
)
def test_populations_with_statistics_of_other_numbers_of_steps(kind, site):
    model = layer(kind, "batch")
    model(draw(5, 8, 3))
    model.get_submodule(f"population_{site}_l0").resize(2)
    compare(model.eval(), draw(7, 4, 3))


@pytest.mark.parametrize("kind", ["lstm", "gru", "mingru", "two", "reset"])
def test_recurrent_dropout(kind):
    for spec in (
        Zoneout(hidden=0.3, cell=0.2 if "zoneout_c" in CELLS[kind]().dropouts else 0.0),
        rnnorm.CellDropout(p=0.4),
        *[rnnorm.SequenceDropout(hidden=0.3)] * ("hidden" in CELLS[kind]().dropouts),
    ):
        compare(layer(kind, "layer", recurrent_dropout=spec), draw(5, 4, 3))


@pytest.mark.parametrize("kind", CELLS)
def test_states_without_biases_and_both_directions(kind):
    model = layer(kind, bias=False, bidirectional=True)
    states = tuple(0.3 * draw(2, 4, model.hidden_size).abs() for _ in model.cell.states)
    compare(model, draw(5, 4, 3), hx=states if len(states) > 1 else states[0])


@pytest.mark.parametrize(
    ("kind", "norm"), [*[(kind, "layer") for kind in CELLS], ("lstm", "joint")]
)
def test_gradcheck_and_the_second_derivative(kind, norm):
    units = 4 if kind == "slstm" else 3
    model = rnnorm.Recurrent(CELLS[kind](), 2, units, norm=NORMS[norm], dtype=torch.float64)
    x = draw(3, 2, 2).requires_grad_()
    names = list(dict(model.named_parameters()))

    def call(x, *parameters):
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(model, given, (x,))[0]

    before = dispatch.calls["cpu"]
    assert torch.autograd.gradcheck(call, (x, *model.parameters()))
    assert dispatch.calls["cpu"] > before
    assert torch.autograd.gradgradcheck(call, (x, *model.parameters()), atol=1e-4)


def shifted(**biases):
    """Return a GRU of other biases, whose equations are compiled as those of OwnGRU."""

    class Shifted(OwnGRU):
        def shifts(self, weights, sites):
            return {site: bias(weights) for site, bias in biases.items()}

    return Shifted


class OneSum(OwnGRU):
    shifts = rnnorm.Cell.shifts


BIASES = {
    "as the kernel": OwnGRU,
    "one sum": OneSum,
    "twice": shifted(input=lambda w: 2 * w.bias_ih, recurrent=lambda w: w.bias_hh),
    "one": shifted(input=lambda w: w.bias_ih),
    "swapped": shifted(input=lambda w: w.bias_hh, recurrent=lambda w: w.bias_ih),
    "none": shifted(),
}


@pytest.mark.parametrize("norm", [None, "batch"])
@pytest.mark.parametrize("biases", BIASES)
def test_biases_are_added_where_the_cell_adds_them(biases, norm, monkeypatch):
    torch.manual_seed(0)
    model = rnnorm.Recurrent(
        BIASES[biases](), 3, 20, norm=norm, dtype=torch.float64, initial_noise=0.0
    )
    model(draw(5, 8, 3))
    found = []
    run = short_call._run
    monkeypatch.setattr(short_call, "_run", lambda *given: found.append(run(*given)) or found[-1])
    for each in (model.train(), model.eval()):
        compare(each, draw(5, 4, 3))
    assert {result is not None for result in found} == {biases == "as the kernel"}


def test_biases_that_change_are_seen():
    factor = [1.0]
    cell = shifted(input=lambda w: w.bias_ih if factor[0] == 1 else factor[0] * w.bias_ih)()
    model = rnnorm.Recurrent(cell, 3, 20, dtype=torch.float64, initial_noise=0.0)
    for factor[0] in (1.0, 2.0):
        compare(model, draw(5, 4, 3))


def test_a_cell_of_an_lstms_equations_is_an_lstm():
    mine = layer("lstm", "batch")
    theirs = rnnorm.LSTM(3, 18, norm="batch", dtype=torch.float64, initial_noise=0.0)
    theirs.load_state_dict(mine.state_dict())
    for a, b in zip(mine(draw(5, 4, 3)), theirs(draw(5, 4, 3)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


def test_autocast_and_half_types_compute_in_float32():
    model = layer("leaky", dtype=torch.float32)
    x = draw(5, 4, 3).float()
    want, _ = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, _ = model(x)
    torch.testing.assert_close(found.float(), want, rtol=0, atol=3e-2)
    before = dispatch.calls["cpu"]
    model.bfloat16()
    assert model(x.bfloat16())[0].dtype == torch.bfloat16
    assert dispatch.calls["cpu"] == before + 1


def test_torch_compile_leaves_the_kernel_out_of_its_graph():
    model, x = layer("leaky").eval(), draw(5, 4, 3)
    want, _ = model(x)
    before = dispatch.calls["cpu"]
    torch._dynamo.reset()
    found, _ = torch.compile(model, backend="eager")(x)
    torch.testing.assert_close(found, want, rtol=0, atol=0)
    assert dispatch.calls["cpu"] > before
    assert rnnorm.explain(model, x).kernel == "cpu"


def test_copies_share_what_was_compiled(caplog):
    model = layer("leaky")
    model(draw(2, 2, 3))
    caplog.clear()
    with caplog.at_level(logging.WARNING, "rnnorm"):
        copy.deepcopy(model)(draw(2, 2, 3))
        pickle.loads(pickle.dumps(model))(draw(2, 2, 3))
        layer("leaky", "layer")(draw(2, 2, 3))
    assert not caplog.records


@pytest.mark.parametrize("name", ["weight_hh_l0", "rate_l0"])
def test_a_parametrized_weight(name):
    model = layer("leaky", "layer")
    parametrize.register_parametrization(model, name, torch.nn.Tanh())
    compare(model, draw(5, 4, 3))
    compare(model, draw(5, 4, 3), lengths=[5, 3, 3, 1])


class Changing(rnnorm.Cell):
    """A cell that computes with the state of Python."""

    def __init__(self, factor):
        object.__setattr__(self, "factor", factor)

    def step(self, weights, x_term, state, normalise, t):
        z = self.preactivation(weights, x_term, state[0], normalise)
        h = torch.tanh(z * self.factor())
        return h, (h,)


@pytest.fixture
def uncompiled(monkeypatch):
    """Stands for the compiler, and notes what it compiles."""
    compiled = []

    def note(text, numbers, name):
        compiled.append(text)
        raise compiler.CompilationError("the test compiles nothing")

    monkeypatch.setattr(compiler, "compile", note)
    return compiled


def test_a_random_cell_is_refused_before_it_is_compiled(uncompiled):
    model = rnnorm.Recurrent(Changing(random.random), 3, 4)
    model(torch.randn(2, 2, 3))
    assert not uncompiled
    assert "others at each call" in rnnorm.explain(model, torch.randn(2, 2, 3)).why_not["cpu"]


def test_threads_that_call_first_at_once_compile_once(uncompiled):
    model, x = rnnorm.Recurrent(Changing(lambda: 0.321), 3, 4), torch.randn(2, 2, 3)
    with ThreadPoolExecutor(4) as pool:
        outputs = [output for output, _ in pool.map(model, [x] * 4)]
    with rnnorm.use_backend("reference"):
        wanted, _ = model(x)
    assert len(uncompiled) == 1
    assert all(torch.equal(output, wanted) for output in outputs)


def test_a_cell_that_changes_is_traced_anew_and_refused_after_a_few_changes(uncompiled):
    factor = [1.0]
    model = rnnorm.Recurrent(Changing(lambda: factor[0]), 3, 4)
    for k in range(8):
        factor[0] = k + 1.5
        for _ in range(2):
            model(torch.randn(2, 2, 3))
    assert len(uncompiled) == own_cell._MOST


def test_a_step_that_is_not_its_trace_is_refused(uncompiled):
    class Lying(rnnorm.Cell):
        def step(self, weights, x_term, state, normalise, t):
            z = self.preactivation(weights, x_term, state[0], normalise)
            # a trace has columns in the place of tensors
            h = torch.tanh(z) if isinstance(z, torch.Tensor) else torch.sigmoid(z)
            return h, (h,)

    model = rnnorm.Recurrent(Lying(), 3, 4)
    model(torch.randn(2, 2, 3))
    assert not uncompiled
    assert "not what the trace" in cpu.refuses(request_of(model))


class Passing(torch.autograd.Function):
    """The identity, with another gradient."""

    @staticmethod
    def forward(ctx, z):
        """Pass a value on."""
        return z

    @staticmethod
    def backward(ctx, grad):
        """Double the gradient."""
        return 2 * grad


def with_step(step, **fields):
    """Return a cell with a step."""
    return type("Made", (rnnorm.Cell,), {"step": step, **fields})()


def test_a_gradient_that_is_not_that_of_the_trace_is_refused(uncompiled):
    def step(self, weights, x_term, state, normalise, t):
        h = Passing.apply(torch.tanh(self.preactivation(weights, x_term, state[0], normalise)))
        return h, (h,)

    model = rnnorm.Recurrent(with_step(step), 3, 4)
    model(torch.randn(2, 2, 3))
    with torch.inference_mode():
        model(torch.randn(2, 2, 3))
    assert not uncompiled
    assert "its gradient is not what the trace" in cpu.refuses(request_of(model))


def test_a_step_in_place_is_refused_where_a_reader_of_the_old_value_is_wrong(uncompiled):
    def step(self, weights, x_term, state, normalise, t):
        z = before = self.preactivation(weights, x_term, state[0], normalise)
        z += 1
        h = torch.tanh(z + before)
        return h, (h,)

    model = rnnorm.Recurrent(with_step(step), 3, 4)
    with torch.no_grad():
        model(torch.randn(2, 2, 3))
    assert not uncompiled
    assert "is not what the trace" in cpu.refuses(request_of(model))


def test_a_step_that_depends_on_biases_is_refused(uncompiled):
    def step(self, weights, x_term, state, normalise, t):
        z = self.preactivation(weights, x_term, state[0], normalise)
        h = torch.tanh(z) if weights.bias_ih is None else torch.sigmoid(z)
        return h, (h,)

    model = rnnorm.Recurrent(with_step(step), 3, 4, bias=False)
    model(torch.randn(2, 2, 3))
    assert not uncompiled
    assert "others without biases" in cpu.refuses(request_of(model))


@pytest.mark.parametrize("draw", [random.random, lambda: torch.rand(()).item()])
def test_a_step_that_is_random_once_in_a_thousand_is_refused(uncompiled, draw):
    model = rnnorm.Recurrent(Changing(lambda: 2.0 if draw() < 1e-3 else 1.0), 3, 4)
    model(torch.randn(2, 2, 3))
    assert not uncompiled
    assert "others at each call" in cpu.refuses(request_of(model))


def test_explain_and_calls_after_a_refusal_draw_no_random_numbers(uncompiled):
    model, x = rnnorm.Recurrent(Changing(lambda: torch.rand(()).item()), 3, 4), torch.randn(2, 2, 3)
    before = torch.get_rng_state()
    explained(model, x)
    assert torch.equal(torch.get_rng_state(), before)
    model(x)
    states = []
    for backend in ("", "reference"):
        torch.manual_seed(0)
        with rnnorm.use_backend(backend) if backend else contextlib.nullcontext():
            model(x)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_a_step_that_counts_its_calls_is_refused(uncompiled):
    def step(self, weights, x_term, state, normalise, t):
        self.log.append(1)
        z = self.preactivation(weights, x_term, state[0], normalise)
        h = torch.tanh(z) if len(self.log) < 1000 else torch.sigmoid(z)
        return h, (h,)

    cell = with_step(step)
    object.__setattr__(cell, "log", [])
    model = rnnorm.Recurrent(cell, 3, 4)
    model(torch.randn(2, 2, 3))
    assert not uncompiled
    assert "others at each call" in cpu.refuses(request_of(model))


@pytest.mark.parametrize(
    ("kind", "why"),
    [("reset", "two recurrent products"), ("two", "two"), ("sru", "no recurrent matrix")],
)
def test_a_gpu_refuses_other_products_than_one_with_a_matrix(kind, why):
    with pytest.raises(TraceError, match=why):
        own_frame.check(trace(CELLS[kind]()))


def request_of(model):
    return dispatch.Request(model.cell, model.norm, torch.device("cpu"), torch.float32)


def test_a_compiler_that_fails_is_asked_once_and_the_reference_runs(uncompiled, caplog):
    model = rnnorm.Recurrent(Changing(lambda: 0.123), 3, 4)
    before = dispatch.calls["reference"]
    with caplog.at_level(logging.INFO, "rnnorm"):
        for _ in range(3):
            model(torch.randn(2, 2, 3))
    assert len(uncompiled) == 1
    assert dispatch.calls["reference"] == before + 3
    assert "the test compiles nothing" in caplog.text


def explained(model, x=None, **given):
    return rnnorm.explain(model, torch.randn(4, 2, 3) if x is None else x, **given)


def test_explain_names_kernel_and_reasons_and_changes_nothing(uncompiled, caplog):
    model, x = layer("gru", "batch", dtype=torch.float32), torch.randn(4, 2, 3)
    before, calls = copy.deepcopy(model.state_dict()), dispatch.calls.copy()
    state = torch.get_rng_state()
    with caplog.at_level(logging.DEBUG, "rnnorm"):
        found = explained(model, x)
    assert found.kernel == "cpu"
    assert list(found.why_not) == ["aten"]
    assert str(found).startswith("runs on cpu\nnot on aten: torch.nn has no")
    assert not uncompiled
    assert not caplog.records
    assert dispatch.calls == calls
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_explain_says_why_a_cell_is_not_compiled(monkeypatch):
    model = layer("leaky", dtype=torch.float32)
    monkeypatch.setenv(compiler.SWITCH, "0")
    found = explained(model)
    assert found.kernel == "reference"
    assert "RNNORM_COMPILE=0" in found.why_not["cpu"]

    class Decides(rnnorm.Cell):
        def step(self, weights, x_term, state, normalise, t):
            h = state[0] if x_term > 0 else x_term
            return h, (h,)

    monkeypatch.setenv(compiler.SWITCH, "1")
    found = explained(rnnorm.Recurrent(Decides(), 3, 4))
    assert found.kernel == "reference"
    assert "decides by a value" in found.why_not["cpu"]


class Several(rnnorm.Cell):
    """A cell of any states, each the one before it delayed by a step."""

    dropouts = ("zoneout_h", "zoneout_c")

    def __init__(self, *states):
        object.__setattr__(self, "states", ("h", *states))

    def step(self, weights, x_term, state, normalise, t):
        h = torch.tanh(self.preactivation(weights, x_term, state[0], normalise) + state[-1])
        return h, (h, *state[:-1])


@pytest.mark.parametrize(
    ("states", "options", "reason"),
    [
        ("cnms", {}, "it has 5 states, of which the kernel has 4 at most"),
        ("nc", {"recurrent_dropout": Zoneout(cell=0.5)}, "state c has zoneout, and is not its sec"),
        ("cn", {"recurrent_dropout": Zoneout(cell=0.5)}, ""),
    ],
)
def test_states_that_the_kernel_does_not_have(uncompiled, states, options, reason):
    model = rnnorm.Recurrent(Several(*states), 3, 4, **options)
    assert reason in explained(model).why_not.get("cpu", "")
    assert explained(model).kernel == ("reference" if reason else "cpu")
    model(torch.randn(2, 2, 3))
    assert len(uncompiled) == (not reason)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (3, TypeError, "input must be a tensor or a PackedSequence, got int"),
        (torch.zeros(5, 2, 7), RuntimeError, "Expected 4, got 7"),
    ],
)
def test_explain_refuses_another_input(given, error, said):
    with pytest.raises(error, match=said):
        rnnorm.explain(rnnorm.LSTM(4, 8), given)


def test_explain_is_what_the_next_call_does():
    x = torch.randn(4, 2, 3)
    for model, given in (
        (rnnorm.LSTM(3, 4), {}),
        (rnnorm.LSTM(3, 4), {"lengths": [4, 2]}),
        (rnnorm.GRU(3, 4, norm="layer"), {"return_states": True}),
        (rnnorm.LSTM(3, 4, proj_size=2, norm="layer"), {}),
        (rnnorm.ClockworkRNN(3, 4, periods=(1, 2)), {"reset": torch.zeros(4, 2).bool()}),
    ):
        kernel = explained(model, x, **given).kernel
        before = dispatch.calls.copy()
        model(x, **given)
        assert dispatch.calls - before == {kernel: 1}
    cell = rnnorm.LSTMCell(3, 4, norm="layer")
    assert explained(cell, x[0]).kernel == "cpu"
    with rnnorm.use_backend("reference"):
        assert explained(cell, x[0]) == ("reference", {})
    with rnnorm.use_backend("aten"), pytest.raises(RuntimeError, match="'aten' does not cover"):
        explained(cell, x[0])
    with pytest.raises(TypeError, match=r"layer must be a layer of rnnorm.*got LSTM"):
        explained(torch.nn.LSTM(3, 4), x)
