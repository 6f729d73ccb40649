"""Nothing that changes between two calls of a layer is missed by the second."""

import contextlib
import copy
import pickle
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils import _pytree as pytree

import rnnorm
from rnnorm.kernels import dispatch
from rnnorm.layers.call import short_call


class Twice(nn.Module):
    def forward(self, x):
        return 2 * x


def trained():
    torch.manual_seed(0)
    layer = rnnorm.LSTM(3, 4, norm="batch", dtype=torch.float64)
    layer(torch.randn(5, 6, 3, dtype=torch.float64))
    return layer.eval()


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


@pytest.fixture(params=[True, False], ids=("gradient", "no gradient"))
def x(request):
    with torch.set_grad_enabled(request.param):
        torch.manual_seed(1)
        yield torch.randn(5, 2, 3, dtype=torch.float64)


def reference(layer, x):
    with rnnorm.use_backend("reference"):
        return layer(x)[0]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_the_next_call_sees(change, x):
    layer = trained()
    before = layer(x)[0]
    with torch.no_grad():
        change(layer)
    after = layer(x)[0]
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, reference(layer, x))


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
def test_the_next_training_step_sees(change):
    layer = trained().train()
    layer.initial_noise = 0.0
    x = torch.randn(5, 6, 3, dtype=torch.float64)

    def step(module):
        output, (h_n, c_n) = module(x)
        leaves = {n: p for n, p in module.named_parameters() if p.requires_grad}
        loss = output.square().sum() + h_n.sum() - c_n.sum()
        return output, torch.autograd.grad(loss, list(leaves.values())), module.state_dict()

    step(layer)
    twin = copy.deepcopy(layer)
    for module in (layer, twin):
        torch.manual_seed(2)
        with torch.no_grad():
            change(module)
    with rnnorm.use_backend("reference"):
        expected = step(twin)
    torch.testing.assert_close(step(layer), expected)


@pytest.mark.parametrize("training", [True, False])
def test_a_backend_that_is_forced_later_runs_the_next_call(training):
    layer, x = trained().train(training), torch.randn(5, 6, 3, dtype=torch.float64)
    layer(x)
    runs = dict(dispatch.calls)
    with rnnorm.use_backend("reference"):
        layer(x)
    layer(x)
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


@pytest.mark.parametrize("name", ["weight_hh_l0", "gamma_input_l0"])
def test_data_of_another_shape_is_refused_at_the_next_call(name, x):
    layer = trained()
    layer(x)
    getattr(layer, name).data = getattr(layer, name).data[:-1]
    if not rnnorm.backends()["cpu"]:
        with pytest.raises(RuntimeError, match=f"{name[:-3]} must have shape"):
            layer(x)


def test_a_gamma_that_is_none_is_refused_at_the_next_call(x):
    layer = trained()
    layer(x)
    layer.gamma_cell_l0 = None
    with pytest.raises(RuntimeError, match="gamma_cell_l0 must be a parameter"):
        layer(x)


def test_the_next_call_runs_in_another_mode(x):
    layer = trained()
    before = layer(x)
    layer.float()
    assert layer(x.float())[0].dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x.float())[0].dtype == torch.bfloat16
    layer.double()
    out = torch.func.vmap(lambda one: layer(one)[0])(x.unsqueeze(0))
    torch.testing.assert_close(out[0], before[0], atol=1e-6, rtol=1e-5)
    layer.train()(x)
    assert layer.population_input_l0.num_batches_tracked[0] == 2


def test_functional_call_brings_weights_and_statistics_for_one_call(x):
    layer = trained()
    before = layer(x)[0]
    state = {name: value + 1 for name, value in layer.state_dict().items()}
    with rnnorm.use_backend("reference"):
        expected = functional_call(layer, state, (x,))[0]
    torch.testing.assert_close(functional_call(layer, state, (x,))[0], expected)
    assert torch.equal(layer(x)[0], before)


@pytest.mark.parametrize("name", ["weight_ih_l0", "bias_hh_l0", "gamma_input_l0", "beta_cell_l0"])
def test_a_parameter_of_another_shape_is_refused(name, x):
    layer = trained()
    short = {name: getattr(layer, name)[:2]}
    several = {name: getattr(layer, name).expand(2, *getattr(layer, name).shape)}
    if not rnnorm.backends()["cpu"]:
        for wrong in (short, several):
            with pytest.raises(RuntimeError, match=f"{name[:-3]} must have shape"):
                functional_call(layer, wrong, (x,))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("wrong", ["narrow", "fewer variances", "one variance"])
def test_a_statistic_of_another_shape_is_refused(wrong, frozen):
    layer = trained()
    layer = rnnorm.freeze(layer) if frozen else layer
    population = layer.population_input_l0
    x, state = torch.randn(5, 2, 3, dtype=torch.float64), torch.zeros(1, 2, 4, dtype=torch.float64)
    with torch.no_grad():
        layer(x, (state, state), step=0)
    if wrong == "narrow":
        population.mean = population.mean[:, :3]
    else:
        population.var = population.var[: 1 if wrong == "one variance" else 2]
    if not rnnorm.backends()["cpu"]:
        with torch.no_grad(), pytest.raises(RuntimeError, match="a population must have 16"):
            layer(x, (state, state), step=0)


def test_a_frozen_layer_sees_how_a_statistic_lies(x):
    layer = rnnorm.freeze(trained())
    state = (torch.zeros(1, 2, 4, dtype=torch.float64),) * 2
    turned = layer.population_input_l0.mean.flip(0)
    given = (x, state), {"step": 0}
    want = functional_call(layer, {"population_input_l0.mean": turned}, *given)
    turned = turned.T.contiguous().T
    found = functional_call(layer, {"population_input_l0.mean": turned}, *given)
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize(
    ("built", "set_to"), [("layer", None), (None, "batch"), ("batch", "layer")]
)
def test_another_norm_is_another_layer(built, set_to):
    layer = rnnorm.LSTM(3, 4, norm=built)
    same = layer.norm
    layer.norm = copy.deepcopy(same)
    with pytest.raises(AttributeError, match="build another with norm="):
        layer.norm = set_to
    assert layer.norm == same


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", ["gamma_input_l0", "beta_cell_l0"])
def test_a_scale_that_is_gone_is_named(name, backend):
    layer = trained()
    setattr(layer, name, None)
    if not rnnorm.backends()[backend]:
        with (
            rnnorm.use_backend(backend),
            pytest.raises(RuntimeError, match=f"{name} must be a parameter"),
        ):
            layer(torch.randn(5, 2, 3, dtype=torch.float64))


@pytest.mark.parametrize("gone", ["bias_ih_l0", "bias_hh_l0"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: rnnorm.GRU(3, 4, norm="layer"),
        lambda: rnnorm.GRU(3, 4, reset_after=False),
        lambda: rnnorm.GRU(3, 4, reset_after="both"),
        lambda: rnnorm.ClockworkRNN(3, 4, (1, 2)),
        lambda: rnnorm.LSTM(3, 4, norm="layer"),
    ],
)
def test_a_bias_that_is_gone_is_zero(make, gone):
    torch.manual_seed(0)
    layer, x = make(), torch.randn(5, 2, 3)
    with_zeros = copy.deepcopy(layer)
    torch.nn.init.zeros_(getattr(with_zeros, gone))
    setattr(layer, gone, None)
    for backend in ("reference", "cpu"):
        if rnnorm.backends()[backend] or (backend == "cpu" and layer.norm is None):
            continue
        with rnnorm.use_backend(backend):
            torch.testing.assert_close(layer(x), with_zeros(x))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_keeps_what_the_original_then_loses(copied, x):
    layer = trained()
    before = layer(x)[0]
    twin = copied(layer)
    for change in (write_data, write_a_statistic, assign_a_parameter):
        with torch.no_grad():
            change(layer)
    assert torch.equal(twin(x)[0], before)


def test_another_dtype_is_computed_in(x):
    layer = trained()
    before = layer(x)[0]
    found = layer.float()(x.float())[0]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), before, rtol=1e-4, atol=1e-5)
    assert layer.bfloat16()(x.bfloat16())[0].dtype == torch.bfloat16


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


@pytest.mark.parametrize("make", [rnnorm.LSTM, rnnorm.GRUCell])
def test_a_call_that_is_refused_adds_no_statistics(make):
    torch.manual_seed(0)
    layer, frame = make(3, 4, norm="batch", dtype=torch.float64), torch.randn(6, 3)
    call = {"step": 4} if make is rnnorm.GRUCell else {}
    x = frame if call else frame.expand(5, 6, 3)
    with pytest.raises((RuntimeError, ValueError)):
        layer(x, **call)
    assert len(layer.get_submodule("population_input" + "_l0" * (not call))) == 1


def test_statistics_that_another_thread_grows_are_read_once(monkeypatch):
    layer = trained().train()
    population, prepare = layer.population_input_l0, short_call.prepare

    def grow_meanwhile(*arguments):
        before = dict(population._buffers)
        population.resize(50)
        prepared = prepare(*arguments)
        population._buffers.update(before)
        return prepared

    monkeypatch.setattr(short_call, "prepare", grow_meanwhile)
    layer(torch.randn(5, 7, 3, dtype=torch.float64))
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


ALL_LAYERS = {
    "RNN": rnnorm.RNN,
    "LSTM": rnnorm.LSTM,
    "two layers, both directions": partial(rnnorm.LSTM, num_layers=2, bidirectional=True),
    "projected": partial(rnnorm.LSTM, proj_size=2),
    "peephole": partial(rnnorm.LSTM, peephole="all"),
    "GRU": rnnorm.GRU,
    "GRU both": partial(rnnorm.GRU, reset_after="both"),
    "LiGRU": rnnorm.LiGRU,
    "IndRNN": rnnorm.IndRNN,
    "MIRNN": rnnorm.MIRNN,
    "clockwork": partial(rnnorm.ClockworkRNN, periods=(1, 2)),
}


@pytest.mark.parametrize("backend", ["reference", None])
@pytest.mark.parametrize("norm", [None, "layer", "batch"])
@pytest.mark.parametrize("make", ALL_LAYERS.values(), ids=ALL_LAYERS)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_a_tensor_changed_in_place_before_backward_is_noticed(make, norm, backend):
    torch.manual_seed(0)
    layer = make(3, 4, norm=norm)
    states = layer(torch.randn(5, 6, 3))[1]
    for name in ("x", "hx", *dict(layer.named_parameters())):
        if name.startswith(("bias", "beta")):
            # nothing that is only added is saved by the reference
            continue
        given = [torch.randn(5, 6, 3, requires_grad=True)]
        given += [s.detach().requires_grad_() for s in pytree.tree_leaves(states)]
        x, *hx = [2 * leaf for leaf in given]
        with rnnorm.use_backend(backend) if backend else contextlib.nullcontext():
            output, _ = layer(x, tuple(hx) if len(hx) > 1 else hx[0])
        with torch.no_grad():
            {"x": x, "hx": hx[-1]}.get(name, getattr(layer, name, None)).add_(1)
        with pytest.raises(RuntimeError, match=r"modified (by an )?inplace"):
            output.sum().backward()
