"""Nothing that changes between two calls of a layer is missed by the second."""

import contextlib
import copy
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize, prune

import rnnorm
from rnnorm.kernels import dispatch
from rnnorm.layers.call import short_call


class Twice(nn.Module):
    def forward(self, x):
        return 2 * x


def write_data(layer):
    layer.weight_hh_l0.data.mul_(2)


def put_other_data(layer):
    layer.weight_hh_l0.data = 2 * layer.weight_hh_l0.data


def put_negative_data(layer):
    # the same memory read with the other sign
    layer.weight_hh_l0.data = torch._neg_view(layer.weight_hh_l0.data)


def set_other_memory(layer):
    layer.weight_hh_l0.set_(2 * layer.weight_hh_l0.detach())


def put_turned_data(layer):
    layer.weight_hh_l0.data = (2 * layer.weight_hh_l0.data).t().contiguous().t()


def write_shared_memory(layer):
    layer.share_memory()
    layer.weight_hh_l0.data.mul_(2)


def tie_two_parameters(layer):
    layer.bias_hh_l0 = layer.bias_ih_l0


def normalise_a_weight(layer):
    parametrizations.weight_norm(layer, "weight_hh_l0")
    layer.parametrizations.weight_hh_l0.original0.data.mul_(2)


def prune_a_weight(layer):
    prune.l1_unstructured(layer, "weight_ih_l0", 0.5)


def drop_a_bias(layer):
    layer.bias_ih_l0 = None


def write_a_statistic(layer):
    layer.population_recurrent_l0.mean.data.add_(1)


def forget_a_step(layer):
    layer.population_input_l0.num_batches_tracked.data[2:] = 0


def assign_a_parameter(layer):
    layer.gamma_cell_l0 = nn.Parameter(layer.gamma_cell_l0.detach() + 1)


def assign_a_buffer(layer):
    layer.population_cell_l0.var = layer.population_cell_l0.var + 1


def assign_a_population(layer):
    layer.population_input_l0 = copy.deepcopy(layer.population_input_l0)
    layer.population_input_l0.mean.add_(1)


def parametrize_a_weight(layer):
    parametrize.register_parametrization(layer, "weight_ih_l0", Twice())


def parametrize_a_gamma(layer):
    parametrize.register_parametrization(layer, "gamma_input_l0", Twice())


def load_a_checkpoint(layer):
    layer.load_state_dict({name: value + 1 for name, value in layer.state_dict().items()})


def assign_a_checkpoint(layer):
    state = {name: value + 1 for name, value in layer.state_dict().items()}
    layer.load_state_dict(state, assign=True)


def grow(layer):
    layer.train()(torch.randn(9, 6, 3, dtype=torch.float64))
    layer.eval()


CHANGES = [
    write_data,
    put_other_data,
    put_negative_data,
    set_other_memory,
    put_turned_data,
    write_shared_memory,
    tie_two_parameters,
    normalise_a_weight,
    prune_a_weight,
    drop_a_bias,
    write_a_statistic,
    forget_a_step,
    assign_a_parameter,
    assign_a_buffer,
    assign_a_population,
    parametrize_a_weight,
    parametrize_a_gamma,
    load_a_checkpoint,
    assign_a_checkpoint,
    grow,
]


def reference(layer, x):
    with rnnorm.use_backend("reference"):
        return layer(x)[0]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_the_next_call_sees(change, x, lstm):
    before = lstm(x)[0]
    with torch.no_grad():
        change(lstm)
    after = lstm(x)[0]
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, reference(lstm, x))


def stop_the_gradient_of_a_weight(layer):
    layer.weight_hh_l0.requires_grad_(False)


def hook_a_gradient(layer):
    layer.gamma_input_l0.register_hook(lambda gradient: 2 * gradient)


def hook_the_input(layer):
    layer.register_forward_pre_hook(lambda _, given: (2 * given[0],))


def change_a_momentum(layer):
    layer.population_recurrent_l0.momentum = 0.9


def train_on_other_steps(layer):
    layer.population_cell_l0.horizon = 2
    layer.population_cell_l0.resize(2)


def evaluate(layer):
    layer.eval()


TRAINING_CHANGES = [
    *CHANGES,
    stop_the_gradient_of_a_weight,
    hook_a_gradient,
    hook_the_input,
    change_a_momentum,
    train_on_other_steps,
    evaluate,
]


@pytest.mark.parametrize("change", TRAINING_CHANGES, ids=lambda change: change.__name__)
def test_the_next_training_step_sees(change, lstm):
    lstm.train()
    lstm.initial_noise = 0.0
    x = torch.randn(5, 6, 3, dtype=torch.float64)

    def step(module):
        output, (h_n, c_n) = module(x)
        leaves = {n: p for n, p in module.named_parameters() if p.requires_grad}
        loss = output.square().sum() + h_n.sum() - c_n.sum()
        return output, torch.autograd.grad(loss, list(leaves.values())), module.state_dict()

    step(lstm)
    twin = copy.deepcopy(lstm)
    for module in (lstm, twin):
        torch.manual_seed(2)
        with torch.no_grad():
            change(module)
    with rnnorm.use_backend("reference"):
        expected = step(twin)
    torch.testing.assert_close(step(lstm), expected)


@pytest.mark.parametrize("training", [True, False])
def test_a_backend_that_is_forced_later_runs_the_next_call(training, lstm):
    lstm.train(training)
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    lstm(x)
    runs = dict(dispatch.calls)
    with rnnorm.use_backend("reference"):
        lstm(x)
    lstm(x)
    assert dispatch.calls["reference"] == runs.get("reference", 0) + 1
    assert sum(dispatch.calls.values()) == sum(runs.values()) + 2


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("grads", ["both", "output", "states", "none"])
def test_backward_again_has_other_gradients(cell, norm, grads):
    torch.manual_seed(0)
    layer = getattr(rnnorm, cell)(3, 4, norm=norm, initial_noise=0.0, dtype=torch.float64)
    x, results = torch.randn(5, 6, 3, dtype=torch.float64, requires_grad=True), []
    leaves = [x, *layer.parameters()]
    for backend in ("reference", None):
        with rnnorm.use_backend(backend) if backend else contextlib.nullcontext():
            output, state = layer(x)
        parts = {"output": output, "states": state[0] if cell == "LSTM" else state}
        every = sum(part.sin().sum() for part in parts.values())
        first = torch.autograd.grad(every, leaves, retain_graph=True)
        loss = every if grads == "both" else parts.get(grads, output * 0).sum()
        # a gradient of the first pass must not be left over
        results.append([first, torch.autograd.grad(loss, leaves, allow_unused=True)])
    torch.testing.assert_close(*results)


def test_the_next_call_runs_in_another_mode(x, lstm):
    before = lstm(x)
    lstm.float()
    assert lstm(x.float())[0].dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert lstm(x.float())[0].dtype == torch.bfloat16
    lstm.double()
    out = torch.func.vmap(lambda one: lstm(one)[0])(x.unsqueeze(0))
    torch.testing.assert_close(out[0], before[0], atol=1e-6, rtol=1e-5)
    lstm.train()(x)
    assert lstm.population_input_l0.num_batches_tracked[0] == 2


def test_functional_call_brings_weights_and_statistics_for_one_call(x, lstm):
    before = lstm(x)[0]
    state = {name: value + 1 for name, value in lstm.state_dict().items()}
    with rnnorm.use_backend("reference"):
        expected = functional_call(lstm, state, (x,))[0]
    torch.testing.assert_close(functional_call(lstm, state, (x,))[0], expected)
    assert torch.equal(lstm(x)[0], before)


def test_a_frozen_layer_sees_how_a_statistic_lies(x, lstm):
    lstm = rnnorm.freeze(lstm)
    state = (torch.zeros(1, 2, 4, dtype=torch.float64),) * 2
    turned = lstm.population_input_l0.mean.flip(0)
    given = (x, state), {"step": 0}
    want = functional_call(lstm, {"population_input_l0.mean": turned}, *given)
    turned = turned.T.contiguous().T
    found = functional_call(lstm, {"population_input_l0.mean": turned}, *given)
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_keeps_what_the_original_then_loses(copied, x, lstm):
    before = lstm(x)[0]
    twin = copied(lstm)
    for change in (write_data, write_a_statistic, assign_a_parameter):
        with torch.no_grad():
            change(lstm)
    assert torch.equal(twin(x)[0], before)


def test_another_dtype_is_computed_in(x, lstm):
    before = lstm(x)[0]
    found = lstm.float()(x.float())[0]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), before, rtol=1e-4, atol=1e-5)
    assert lstm.bfloat16()(x.bfloat16())[0].dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["RNNCell", "LSTMCell"])
def test_a_cell_sees_a_statistic_written(name, x):
    torch.manual_seed(0)
    cell = getattr(rnnorm, name)(3, 4, norm="batch", dtype=torch.float64)
    cell(torch.randn(6, 3, dtype=torch.float64))
    cell.eval()
    before = cell(x[0])
    cell.population_input.mean.data.add_(1)
    after = cell(x[0])
    with rnnorm.use_backend("reference"):
        torch.testing.assert_close(after, cell(x[0]))
    assert not torch.allclose(after[0], before[0])


@pytest.mark.parametrize("change", [None, parametrize_a_weight])
@pytest.mark.parametrize(
    ("norm", "dtype", "rows"),
    [
        ("batch", torch.float64, 6),
        ("batch", torch.bfloat16, 6),
        (rnnorm.BatchNorm(population="shared"), torch.float64, 6),
        ("batch", torch.float64, 1),
    ],
    ids=["all", "bfloat16", "shared", "one row"],
)
@pytest.mark.filterwarnings("ignore:.*expected at least 2 active rows")
def test_a_seed_gives_the_same_initial_noise_to_every_kernel(change, norm, dtype, rows):
    torch.manual_seed(0)
    layer = rnnorm.LSTM(3, 4, norm=norm, initial_noise=0.5, dtype=dtype)
    layer(torch.randn(5, 6, 3, dtype=dtype))
    if change:
        change(layer)
    x, drawn = torch.randn(5, rows, 3, dtype=dtype), []
    for backend in ("reference", None):
        torch.manual_seed(1)
        with rnnorm.use_backend(backend) if backend else contextlib.nullcontext():
            layer(x)
        drawn.append(torch.rand(4))
    assert torch.equal(*drawn)


def test_statistics_that_another_thread_grows_are_read_once(monkeypatch, lstm):
    lstm.train()
    population, prepare = lstm.population_input_l0, short_call.prepare

    def grow_meanwhile(*arguments):
        before = dict(population._buffers)
        population.resize(50)
        prepared = prepare(*arguments)
        population._buffers.update(before)
        return prepared

    monkeypatch.setattr(short_call, "prepare", grow_meanwhile)
    lstm(torch.randn(5, 7, 3, dtype=torch.float64))
    assert population.num_batches_tracked.tolist() == [2] * 5


@pytest.mark.parametrize("name", ["GRUCell", "LSTMCell"])
def test_a_cell_sees_a_count_written_amid_its_steps(name, x):
    torch.manual_seed(0)
    cell = getattr(rnnorm, name)(3, 4, norm="batch", dtype=torch.float64)
    for step in range(4):
        cell(torch.randn(6, 3, dtype=torch.float64), step=step)
    cell.eval()
    before = [cell(x[0], step=step) for step in range(6)]
    cell.population_input.num_batches_tracked.data[2] = 0
    after = [cell(x[0], step=step) for step in range(6)]
    with rnnorm.use_backend("reference"):
        torch.testing.assert_close(after, [cell(x[0], step=step) for step in range(6)])
    assert not torch.allclose(after[2][0], before[2][0])
