"""A call that differs from the last one in numbers alone is told from every other call."""

import contextlib
import copy
import itertools
from functools import partial

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import rnnorm
from rnnorm.cells.gru import GRU
from rnnorm.kernels.cpu import library, short_passes
from rnnorm.layers.call import known_layer, short_call

NORMS = {"batch": "batch", "layer": "layer", "shared": rnnorm.BatchNorm(population="shared")}
ROWS, SIZE, UNITS = 6, 3, 4


@pytest.fixture(autouse=True)
def repeated(monkeypatch):
    """Count the calls since the last look that were repetitions."""
    if library.UNAVAILABLE or known_layer._Guards is None:
        pytest.skip("no call is a repetition here")
    torch.manual_seed(0)
    found, run = [], short_call._repeat
    monkeypatch.setattr(short_call, "_repeat", lambda *given: found.append(1) or run(*given))

    def look():
        count = len(found)
        found.clear()
        return count

    return look


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def cell_of(name, norm, **options):
    cell = getattr(rnnorm, name)(SIZE, UNITS, norm=NORMS[norm], dtype=torch.float64, **options)
    for step in range(3):
        cell(draw(ROWS, SIZE), step=step)
    return cell


def state_of(name, rows=ROWS):
    return (draw(rows, UNITS), draw(rows, UNITS)) if name == "LSTMCell" else draw(rows, UNITS)


def on_reference(module, *given, **options):
    with rnnorm.use_backend("reference"):
        return module(*given, **options)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell", "RNNCell"])
def test_steps_with_other_numbers_are_those_of_the_reference(name, norm, training, repeated):
    cell = cell_of(name, norm).train(training)
    twin, results = copy.deepcopy(cell), []
    xs, first = draw(5, ROWS, SIZE), state_of(name)
    repeated()
    for each in (cell, twin):
        state, outputs = first, []
        # in training the last steps add rows to a population
        for step, x in enumerate(xs):
            run = each if each is cell else partial(on_reference, twin)
            state = run(x, state, step=step)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        loss = torch.stack(outputs).sin().sum()
        gradients = torch.autograd.grad(loss, list(each.parameters()))
        results.append((outputs, gradients, each.state_dict()))
        assert bool(repeated()) == (each is cell)
    torch.testing.assert_close(*results)


def test_a_step_whose_statistics_are_not_finite_is_left_out(repeated):
    cell, x = cell_of("GRUCell", "batch"), draw(ROWS, SIZE)
    cell(x, step=0)
    repeated()
    before = copy.deepcopy(cell.state_dict())
    cell(torch.full_like(x, float("nan")), step=1)
    cell(x, step=2)
    assert repeated() >= 1
    after = (
        cell.population_input.num_batches_tracked - before["population_input.num_batches_tracked"]
    )
    assert after.tolist() == [0, 0, 1]


@pytest.mark.parametrize("norm", NORMS)
def test_the_mode_of_autograd_may_change(norm, repeated):
    cell, x, state = cell_of("LSTMCell", norm).eval(), draw(ROWS, SIZE), state_of("LSTMCell")
    repeated()
    for enabled in (False, True, True, False, True):
        with torch.set_grad_enabled(enabled):
            h, _ = cell(x, state, step=0)
        assert h.requires_grad == enabled
    assert repeated() == 1
    cell.requires_grad_(False)
    assert not cell(x, state, step=0)[0].requires_grad
    wanted = x.clone().requires_grad_()
    h, _ = cell(wanted, state, step=0)
    expected = on_reference(cell, wanted, state, step=0)[0]
    torch.testing.assert_close(
        torch.autograd.grad(h.sum(), wanted), torch.autograd.grad(expected.sum(), wanted)
    )


@pytest.mark.parametrize(
    ("change", "known"),
    [
        (lambda x, h: (x[:4], h[:4]), False),
        (lambda x, h: (draw(SIZE, ROWS).T, h), False),
        (lambda x, h: (x, draw(UNITS, ROWS).T), False),
        (lambda x, h: (x, None), False),
        (lambda x, h: (torch._neg_view(x), h), False),
        (lambda x, h: (x, torch._neg_view(h)), False),
        (lambda x, h: (torch._efficientzerotensor(x.shape, dtype=x.dtype), h), False),
        (lambda x, h: (x, torch._efficientzerotensor(h.shape, dtype=h.dtype)), False),
        (lambda x, h: (x + 1, h + 1), True),
    ],
    ids=[
        "rows",
        "strides",
        "strides of h",
        "no state",
        "sign",
        "sign of h",
        "zeros",
        "zeros of h",
        "numbers",
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_other_tensors_are_seen(training, change, known, repeated):
    cell, x, h = cell_of("GRUCell", "batch").train(training), draw(ROWS, SIZE), draw(ROWS, UNITS)
    cell(x, h, step=0)
    twin, given = copy.deepcopy(cell), change(x, h)
    repeated()
    found = cell(*given, step=0)
    assert repeated() == known
    torch.testing.assert_close(found, on_reference(twin, *given, step=0))
    torch.testing.assert_close(cell.state_dict(), twin.state_dict())


class Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("training", [True, False])
def test_an_observer_that_comes_later_sees_operators(training, repeated):
    cell, x, h = cell_of("GRUCell", "layer").train(training), draw(ROWS, SIZE), draw(ROWS, UNITS)
    repeated()
    want, again = cell(x, h), cell(x, h)
    assert torch.equal(want, again)
    assert repeated() == 1
    with Watch() as watch:
        torch.testing.assert_close(cell(x, h), want)
    assert watch.seen
    torch.testing.assert_close(
        torch.func.vmap(lambda one: cell(one, h))(x[None])[0], want, rtol=1e-5, atol=1e-6
    )
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        assert forward_ad.unpack_dual(cell(dual, h)).tangent is not None
    with torch.inference_mode():
        assert cell(x, h).is_inference()
    assert repeated() == 0
    with pytest.raises(RuntimeError, match="must have"):
        cell(x.float(), h.float())


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_autocast_that_begins_later_is_seen(norm, repeated):
    cell = cell_of("LSTMCell", norm).float().eval()
    x, state = torch.randn(ROWS, SIZE), (torch.randn(ROWS, UNITS), torch.randn(ROWS, UNITS))
    repeated()
    for dtype in (None, torch.bfloat16, torch.float16, None):
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            for _ in range(3):
                found = cell(x, state, step=0)
            expected = on_reference(cell, x, state, step=0)
        assert [s.dtype for s in found] == [s.dtype for s in expected]
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
        short = dtype is None or (dtype == torch.bfloat16 and library.multiplies_bfloat16())
        assert bool(repeated()) == short


@pytest.mark.skipif(not library.multiplies_bfloat16(), reason="no products of bfloat16 here")
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("norm", [*NORMS, "laurent2015-sequence"])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN", "LiGRU", "LSTMCell", "GRUCell", "RNNCell"])
def test_evaluation_under_autocast_has_the_bits_of_the_usual_way(name, norm, given, repeated):
    if norm not in NORMS and name.endswith("Cell"):
        pytest.skip("a cell sees one frame")
    rows, units, shape = 5, 18, (4, 5, 7)
    shape = shape[1:] if name.endswith("Cell") else shape
    module = getattr(rnnorm, name)(7, units, norm=NORMS.get(norm, norm))
    module(torch.randn(shape))
    module.eval()
    h = torch.randn((rows, units) if name.endswith("Cell") else (1, rows, units))
    hx = ((h, h + 1) if name.startswith("LSTM") else h) if given else None
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for step in (0, 0, 0, 1):
            x = torch.randn(shape)
            found = module(x, hx, step=step)
            # a backend that is named takes the usual way
            with rnnorm.use_backend("cpu"):
                expected = module(x, hx, step=step)
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
        assert repeated() >= (0 if norm == "batch" else 1)
        with torch.autocast("cpu", torch.float16):
            found, expected = module(x, hx, step=0), on_reference(module, x, hx, step=0)
            torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    with torch.autocast("cpu", torch.bfloat16):
        output = module(x, hx, step=0)[0]
    assert output.requires_grad


@pytest.mark.skipif(not library.multiplies_bfloat16(), reason="no products of bfloat16 here")
@pytest.mark.parametrize("norm", ["batch", "layer", "laurent2015-sequence"])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN", "LiGRU", "LSTMCell", "GRUCell", "RNNCell"])
def test_training_under_autocast_has_the_bits_of_the_usual_way(name, norm, repeated):
    if norm == "laurent2015-sequence" and name.endswith("Cell"):
        pytest.skip("a cell sees one frame")
    shape = (5, 7) if name.endswith("Cell") else (4, 5, 7)
    module = getattr(rnnorm, name)(7, 18, norm=norm)
    usual = copy.deepcopy(module)
    for seed in range(3):
        given = torch.randn(shape)
        answers = []
        for each, backend in (module, contextlib.nullcontext()), (usual, rnnorm.use_backend("cpu")):
            x = given.clone().requires_grad_()
            # batch norm draws its first state
            torch.manual_seed(seed)
            with backend, torch.autocast("cpu", torch.bfloat16):
                frames = x * 1
                answer = each(frames)
                # products have read a copy
                frames.add_(1)
            leaves = [x, *each.parameters()]
            output = answer[0] if isinstance(answer, tuple) else answer
            loss = output.float().square().sum()
            first = torch.autograd.grad(loss, leaves, create_graph=True)
            slope = sum(gradient.float().square().sum() for gradient in first)
            second = torch.autograd.grad(slope, leaves, allow_unused=True)
            assert {gradient.dtype for gradient in first} == {torch.float32}
            answers.append([answer, *first, *[g for g in second if g is not None]])
        torch.testing.assert_close(*answers, rtol=0, atol=0)
    # steps that share a statistic take the usual way
    assert repeated() >= (norm != "laurent2015-sequence")
    buffers = dict(module.named_buffers()), dict(usual.named_buffers())
    torch.testing.assert_close(*buffers, rtol=0, atol=0)


def test_a_stream_without_step_is_warned_of_once(repeated):
    cell, x, state = cell_of("LSTMCell", "batch").eval(), draw(ROWS, SIZE), state_of("LSTMCell")
    cell(x, state, step=0)
    with pytest.warns(UserWarning, match="hx was given without step"):
        cell(x, state)
    cell(x, state)
    cell(x, state)
    assert repeated() >= 1


def test_statistics_that_are_forgotten_are_warned_of(repeated):
    cell, x, h = cell_of("GRUCell", "shared").eval(), draw(ROWS, SIZE), draw(ROWS, UNITS)
    for _ in range(3):
        cell(x, h, step=0)
    assert repeated()
    cell.reset_running_stats()
    with pytest.warns(UserWarning, match="before any statistic was taken"):
        cell(x, h, step=0)


def test_a_sequence_without_a_state_draws_the_same_noise(repeated):
    layer = rnnorm.LSTM(SIZE, UNITS, norm="batch", initial_noise=0.5, dtype=torch.float64)
    twin, x = copy.deepcopy(layer), draw(5, ROWS, SIZE)
    found = []
    for each, backend in ((layer, None), (twin, "reference")):
        torch.manual_seed(1)
        with rnnorm.use_backend(backend) if backend else contextlib.nullcontext():
            outputs = [each(x + k)[0] for k in range(4)]
        found.append((outputs, each.state_dict(), torch.rand(3)))
    assert repeated() >= 1
    torch.testing.assert_close(*found)


def test_lengths_of_sequences_may_take_turns(repeated):
    layer = rnnorm.GRU(SIZE, UNITS, norm="batch", initial_noise=0.0, dtype=torch.float64)
    twin = copy.deepcopy(layer)
    for steps, rows in itertools.product((5, 2, 7), (ROWS, ROWS, ROWS, 4)):
        x = draw(steps, rows, SIZE)
        torch.testing.assert_close(layer(x), on_reference(twin, x))
    torch.testing.assert_close(layer.state_dict(), twin.state_dict())
    assert repeated() == 3


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("gradient", [True, False])
def test_sequences_that_leave_no_statistics_may_have_any_form(norm, gradient, repeated):
    layer = rnnorm.LSTM(SIZE, UNITS, norm=NORMS[norm], dtype=torch.float64)
    layer(draw(4, ROWS, SIZE))
    layer.eval()
    forms = [(5, 6), (3, 1), (1, 4), (0, 4), (2, 0), (9, 7), (9, 7), (8, 3), (4, 2)]
    with torch.set_grad_enabled(gradient):
        for k, (steps, rows) in enumerate(forms):
            x = draw(rows, steps, SIZE).transpose(0, 1) if k % 3 else draw(steps, rows, SIZE)
            if steps:
                torch.testing.assert_close(layer(x), on_reference(layer, x))
            else:
                with pytest.raises(RuntimeError):
                    layer(x)
    # the call in training, too, may be of any form where it takes no statistics
    assert repeated() == (6 if norm == "layer" else 5)


def test_a_state_of_other_rows_than_the_input_is_refused_after_calls_without_one(repeated):
    layer = rnnorm.GRU(SIZE, UNITS, norm="layer", dtype=torch.float64)
    for rows in (6, 5, 4):
        layer(draw(5, rows, SIZE))
    assert repeated() == 1
    with pytest.raises(RuntimeError, match="hidden"):
        layer(draw(5, 3, SIZE), draw(1, 6, UNITS))
    with pytest.raises(RuntimeError):
        layer(draw(5, 3, SIZE + 1))
    assert not repeated()


def test_another_cell_is_seen(repeated):
    layer, x = rnnorm.GRU(SIZE, UNITS, norm="layer", dtype=torch.float64), draw(5, ROWS, SIZE)
    for _ in range(3):
        before, _ = layer(x)
    assert repeated()
    layer.cell = GRU("both")
    torch.testing.assert_close(layer(x), on_reference(layer, x))
    assert not torch.equal(layer(x)[0], before)


def test_a_state_that_is_given_twice(monkeypatch, repeated):
    layer = rnnorm.LSTM(SIZE, UNITS, norm="layer", dtype=torch.float64)
    x, zeros, guards = draw(5, ROWS, SIZE), draw(1, ROWS, UNITS), known_layer._Guards
    made = []
    monkeypatch.setattr(known_layer, "_Guards", lambda *g, **k: made.append(1) or guards(*g, **k))
    for _ in range(4):
        torch.testing.assert_close(layer(x, (zeros, zeros)), on_reference(layer, x, (zeros, zeros)))
    assert not made


@pytest.mark.parametrize("shrinking", [True, False])
def test_a_backward_pass_of_more_shapes_than_are_remembered(monkeypatch, shrinking):
    monkeypatch.setattr(short_passes, "_sizes", short_passes._sizes.__wrapped__)
    cell = rnnorm.GRUCell(SIZE, 16, norm="layer", dtype=torch.float64)
    layer = rnnorm.LSTM(SIZE, 16, norm="layer", dtype=torch.float64)
    x = draw(3, SIZE)

    def gradients():
        total = 0.0
        h = x.new_zeros(3, 16)
        for n in range(3, 0, -1):
            if shrinking:
                h = cell(x[:n], h[:n])
                total = total + h.sum()
            else:
                total = total + layer(x[:n].unsqueeze(1))[0].sum()
        # memory that is no longer held gets other numbers
        assert not any([torch.zeros(1, dtype=torch.int64).any() for _ in range(100)])
        return torch.autograd.grad(total, [*(cell if shrinking else layer).parameters()])

    found = gradients()
    with rnnorm.use_backend("reference"):
        torch.testing.assert_close(found, gradients())
