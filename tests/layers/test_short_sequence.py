"""Short calls of several layers or directions have the bits of usual calls."""

import copy

import pytest
import torch
from torch.nn.utils import parametrize, prune

import rnnorm
from rnnorm.kernels import dispatch
from rnnorm.kernels.cpu import library
from rnnorm.layers.call import known_layer, short_call, short_sequence

pytestmark = pytest.mark.skipif(bool(library.UNAVAILABLE), reason=library.UNAVAILABLE)

ROWS, SIZE, UNITS = 6, 3, 4
FORMS = {
    "two layers": {"num_layers": 2, "batch_first": True},
    "two directions": {"bidirectional": True, "bias": False},
    "both": {"num_layers": 3, "bidirectional": True},
    "dropout": {"num_layers": 2, "dropout": 0.4},
}


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def make(name="LSTM", norm="batch", **options):
    torch.manual_seed(0)
    return getattr(rnnorm, name)(SIZE, UNITS, norm=norm, dtype=torch.float64, **options)


@pytest.fixture
def usually(monkeypatch):
    """Run a function with no call taken for a short one."""

    def run(function, *given):
        with monkeypatch.context() as patch:
            patch.setattr(short_sequence, "run", lambda *_: None)
            return function(*given)

    return run


@pytest.fixture
def runs(monkeypatch):
    """Count the calls of functions of ``short_call`` and ``short_sequence``."""
    found = dict.fromkeys(["_repeat", "_run", "run_layer"], 0)

    def count(module, name):
        function = getattr(module, name)

        def counted(*given, **options):
            found[name] += 1
            return function(*given, **options)

        monkeypatch.setattr(module, name, counted)

    for name in ("_repeat", "_run"):
        count(short_call, name)
    count(short_sequence, "run_layer")
    return found


def trained(layer, xs, states, steps):
    """Return all that calls of a layer and their backward passes leave."""
    torch.manual_seed(1)
    found = []
    for x, state, step in zip(xs, states, steps, strict=True):
        x = x.clone().requires_grad_()
        output, hidden = layer(x, state, step=step)
        hidden = hidden if isinstance(hidden, tuple) else (hidden,)
        loss = sum(part.sin().sum() for part in (output, *hidden))
        gradients = torch.autograd.grad(loss, [x, *layer.parameters()])
        found.append((output, hidden, gradients))
    return found, layer.state_dict(), torch.rand(3)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("norm", ["batch", "layer", "bn-e*", "rms"])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "LiGRU"])
def test_calls_have_the_bits_of_usual_calls(name, norm, form, training, given, usually, runs):
    layer = make(name, norm, **FORMS[form])
    layer(draw(9, 9, SIZE))
    layer.train(training)
    twin, count = copy.deepcopy(layer), len(layer._suffixes())
    xs = [draw(ROWS, ROWS, SIZE) for _ in range(4)]
    states, steps = [None] * 4, [0] * 4
    if given:
        states = [tuple(draw(count, ROWS, UNITS) for _ in layer.cell.states) for _ in xs]
        states = states if len(layer.cell.states) > 1 else [h for (h,) in states]
        steps = [0] * 4 if layer.bidirectional else [0, 1, 2, 3]
    runs.update(dict.fromkeys(runs, 0))
    dispatch.calls.clear()
    found = trained(layer, xs, states, steps)
    assert dispatch.calls == {"cpu": 4}
    assert runs["run_layer"] == 0
    # the usual call merges a statistic of all frames into the population
    merged = training and norm == "bn-e*"
    assert (runs["_repeat"] > 0) == (not merged and known_layer._Guards is not None)
    torch.testing.assert_close(found, usually(trained, twin, xs, states, steps), rtol=0, atol=0)


def test_a_layer_that_needs_the_usual_way_gets_it_amid_the_others(usually, runs):
    layer, twin = make(num_layers=3), make(num_layers=3)
    for each in (layer, twin):
        prune.l1_unstructured(each, "weight_hh_l1", 0.5)
    xs, nothing = [draw(5, ROWS, SIZE) for _ in range(3)], [None] * 3
    found = trained(layer, xs, nothing, nothing)
    assert runs["run_layer"] == 3
    assert layer.population_input_l0.num_batches_tracked.tolist() == [3] * 5
    torch.testing.assert_close(found, usually(trained, twin, xs, nothing, nothing))


class Twice(torch.nn.Module):
    def forward(self, weight):
        return 2 * weight


def test_a_weight_may_be_computed_between_calls(usually):
    layer, x = make("GRU", "layer", num_layers=2).eval(), draw(5, ROWS, SIZE)
    for _ in range(3):
        before = layer(x)[0]
    parametrize.register_parametrization(layer, "weight_ih_l1", Twice())
    assert not torch.equal(layer(x)[0], before)
    torch.testing.assert_close(layer(x), usually(layer, x), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("x", "hx", "options"),
    [
        (draw(5, ROWS, SIZE), draw(1, ROWS, UNITS), {}),
        (draw(5, ROWS, SIZE), draw(2, ROWS, UNITS).float(), {}),
        (draw(5, ROWS, SIZE).float(), None, {}),
        (draw(5, ROWS, SIZE + 1), None, {}),
        (draw(5, ROWS, SIZE), "state", {}),
        (draw(0, ROWS, SIZE), None, {}),
        (draw(5, 1, SIZE), None, {}),
        (draw(5, ROWS, SIZE), None, {"step": -1}),
        (draw(5, ROWS, SIZE), None, {"step": 1.0}),
    ],
)
def test_what_is_refused_leaves_no_statistics(x, hx, options, usually):
    layer = make("GRU", num_layers=2)
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises((RuntimeError, TypeError, ValueError, AttributeError)) as said:
        usually(lambda: layer(x, hx, **options))
    with pytest.raises(said.type) as error:
        layer(x, hx, **options)
    assert str(error.value) == str(said.value)
    assert layer.state_dict().keys() == before.keys()
    assert all(torch.equal(now, before[name]) for name, now in layer.state_dict().items())


def test_a_step_of_two_directions_is_refused():
    layer = make("GRU", "layer", bidirectional=True)
    with pytest.raises(ValueError, match="step"):
        layer(draw(5, ROWS, SIZE), step=1)


def test_a_stream_of_two_layers_is_warned_of_once():
    layer = make(num_layers=2)
    layer(draw(5, ROWS, SIZE))
    _, state = layer.eval()(draw(5, ROWS, SIZE))
    with pytest.warns(UserWarning, match="hx was given without step") as caught:
        layer(draw(5, ROWS, SIZE), state)
    assert caught[0].filename == __file__
    layer(draw(5, ROWS, SIZE), state)


def test_without_a_norm_torchs_own_kernel_runs():
    layer, x = make(norm=None, num_layers=2), draw(5, ROWS, SIZE)
    dispatch.calls.clear()
    for _ in range(3):
        layer(x)
    assert dispatch.calls == {"aten": 3}


def test_autocast_is_left_to_the_usual_call(runs):
    layer, x = rnnorm.LSTM(SIZE, UNITS, num_layers=2, norm="layer").eval(), torch.randn(5, 6, SIZE)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        output = layer(x)[0]
    assert runs == dict.fromkeys(runs, 0)
    assert output.dtype == torch.bfloat16
    with torch.no_grad():
        exact = layer(x)[0]
    assert (output - exact).norm() < 0.03 * exact.norm()
