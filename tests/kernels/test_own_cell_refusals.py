"""Users' cells that are not compiled: the trace is not what they compute, or the compiler fails."""

import contextlib
import logging
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from compiled_cells import CELLS

import rnnorm
from rnnorm.cells.mirnn import MIRNN
from rnnorm.kernels import dispatch, own_cell
from rnnorm.kernels.cpu import layer as cpu
from rnnorm.kernels.cuda import own_frame
from rnnorm.kernels.equations.opaque import TraceError
from rnnorm.kernels.equations.trace import trace

pytestmark = pytest.mark.usefixtures("compiling")


class Changing(rnnorm.Cell):
    """A cell that computes with the state of Python."""

    def __init__(self, factor):
        object.__setattr__(self, "factor", factor)

    def step(self, weights, x_term, state, normalise, t):
        z = self.preactivation(weights, x_term, state[0], normalise)
        h = torch.tanh(z * self.factor())
        return h, (h,)


def test_a_random_cell_is_refused_before_it_is_compiled(uncompiled):
    model = rnnorm.Recurrent(Changing(random.random), 3, 4)
    model(torch.randn(2, 2, 3))
    assert not uncompiled
    assert "change at each call" in rnnorm.explain(model, torch.randn(2, 2, 3)).why_not["cpu"]


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
    assert "change at each call" in cpu.refuses(request_of(model))


def test_explain_and_calls_after_a_refusal_draw_no_random_numbers(uncompiled):
    model, x = rnnorm.Recurrent(Changing(lambda: torch.rand(()).item()), 3, 4), torch.randn(2, 2, 3)
    before = torch.get_rng_state()
    rnnorm.explain(model, x)
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
    assert "change at each call" in cpu.refuses(request_of(model))


def test_a_gpu_refuses_a_cell_without_a_recurrent_matrix():
    with pytest.raises(TraceError, match="no recurrent matrix"):
        own_frame.check(trace(CELLS["sru"]()))


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
    (warned,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "runs on the reference: the test compiles nothing" in warned.getMessage()


@pytest.mark.parametrize("first", [True, False])
def test_two_products_are_refused_where_ranks_are_synchronized_whichever_call_is_first(
    monkeypatch, first
):
    # the refusal does not depend on a compiler
    monkeypatch.setattr("rnnorm.kernels.cpu.own_frame.compile", lambda cell, request: "")
    asked = request_of(rnnorm.Recurrent(CELLS["reset"](), 3, 4, norm="batch"))
    for synchronized in (first, not first):
        why = cpu.refuses(asked._replace(synchronized=synchronized))
        assert ("not merged across processes" in why) == synchronized


def test_a_trace_that_raises_is_no_trace_that_was_compared(uncompiled):
    draws = iter([None, OSError("no file"), *[None] * 9])

    def step(self, weights, x_term, state, normalise, t):
        if error := next(draws):
            raise error
        h = torch.tanh(self.preactivation(weights, x_term, state[0], normalise) * random.random())
        return h, (h,)

    model = rnnorm.Recurrent(with_step(step), 3, 4)
    assert "OSError" in cpu.refuses(request_of(model))
    assert "change at each call" in cpu.refuses(request_of(model))
    assert not uncompiled


def test_explain_says_why_equations_without_biases_are_refused(uncompiled):
    def step(self, weights, x_term, state, normalise, t):
        z = self.preactivation(weights, x_term, state[0], normalise)
        h = torch.tanh(z if weights.bias_ih is None else 2 * z)
        return h, (h,)

    model = rnnorm.Recurrent(with_step(step), 3, 4)
    x = torch.randn(2, 2, 3)
    model(x)
    assert "others without biases" in rnnorm.explain(model, x).why_not["cpu"]


def test_a_normalised_value_that_is_no_term_is_refused_and_another_layer_of_the_cell_is_not(
    uncompiled,
):
    normalised = rnnorm.MIRNN(3, 4, norm=rnnorm.LayerNorm(input=False, recurrent=False, joint=True))
    assert "the site 'joint' is not one of a term" in cpu.refuses(request_of(normalised))
    assert not uncompiled
    assert "the test compiles nothing" in cpu.refuses(request_of(rnnorm.MIRNN(3, 4, norm="layer")))


def test_a_shift_of_a_value_that_is_no_term_is_refused(uncompiled):
    class Shifted(MIRNN):
        def shifts(self, weights, sites):
            return {"joint": weights.bias_ih}

    model = rnnorm.Recurrent(Shifted(), 3, 4)
    assert "it shifts the term of the site 'joint'" in cpu.refuses(request_of(model))
    assert not uncompiled


def test_more_weights_than_the_kernel_has_room_for_are_refused(uncompiled):
    class Many(rnnorm.Cell):
        def weights(self, input_size, hidden_size, bias):
            return super().weights(input_size, hidden_size, bias) | {"w": (17 * hidden_size,)}

        def step(self, weights, x_term, state, normalise, t):
            z = self.preactivation(weights, x_term, state[0], normalise)
            h = torch.tanh(sum(w * z for w in weights.own["w"].chunk(17)))
            return h, (h,)

    why = cpu.refuses(request_of(rnnorm.Recurrent(Many(), 3, 4)))
    assert "17 weights by unit, of which the kernel has 16 at most" in why
    with pytest.raises(TraceError, match="17 weights by unit"):
        own_frame.check(trace(Many()))
    assert not uncompiled


def test_an_input_of_other_features_or_dtype_is_refused_before_the_cell_is_compiled(uncompiled):
    model = rnnorm.Recurrent(Changing(lambda: 0.5432), 3, 4)
    packed = torch.nn.utils.rnn.pack_sequence([torch.randn(2, 5), torch.randn(1, 5)])
    for x in (torch.randn(2, 2, 5), torch.randn(2, 5), packed):
        with pytest.raises(RuntimeError, match="Expected 3, got 5"):
            model(x)
    with pytest.raises(RuntimeError, match="input must be 2-D or 3-D"):
        model(torch.tensor(1.0))
    # in the words of torch's version
    with pytest.raises(ValueError, match="float64"):
        model(torch.randn(2, 2, 3, dtype=torch.float64))
    assert not uncompiled
    model(torch.randn(2, 2, 3))
    assert len(uncompiled) == 1
