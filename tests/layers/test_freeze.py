"""A frozen copy gives the model's values, whatever way it takes, and stays what it is."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import prune

import rnnorm.export
from rnnorm.diagnostics import batch_statistics
from rnnorm.kernels import dispatch
from rnnorm.layers.call import one_layer

NORMS = {
    "batch": "batch",
    "shared": rnnorm.BatchNorm(population="shared"),
    "sequence": "bn-e*",
    "layer": "layer",
    "mixed": {"input": "bn-e*", "recurrent": rnnorm.RMSNorm(gamma=0.5)},
}


@pytest.fixture(params=NORMS.values(), ids=NORMS)
def norm(request):
    return request.param


def trained(sequence, norm, **options):
    layer = sequence.rnnorm(norm=norm, num_layers=2, **options)
    for seed, length in ((3, 6), (4, 4)):
        layer(sequence.input(rows=8, length=length, seed=seed))
    return layer.eval()


def test_a_frozen_copy_gives_the_same_values(plain, norm, close):
    layer = trained(plain, norm)
    frozen = rnnorm.freeze(layer)
    x, lengths = plain.input(length=9), torch.tensor([4, 9, 1])
    close(frozen(x), layer(x))
    close(frozen(x, lengths=lengths), layer(x, lengths=lengths))
    if norm != "layer":
        ages = torch.tensor([0, 7, 3])
        close(frozen(x, step=ages), layer(x, step=ages))


@pytest.mark.parametrize("step", [0, 2, 4, 5, 30])
def test_a_stream_takes_the_same_values_a_short_way(plain, norm, step, close, monkeypatch):
    layer = trained(plain, norm, batch_first=True)
    frozen = rnnorm.freeze(layer)
    arguments = plain.input().transpose(0, 1), tuple(torch.cat(2 * [s]) for s in state_of(plain))
    arguments = arguments if plain.name == "LSTM" else (arguments[0], *arguments[1])
    wanted = layer(*arguments, step=step)
    if not rnnorm.backends()["cpu"]:
        # what the usual call gives to a kernel
        monkeypatch.setattr(one_layer, "LayerCall", None)
    for _ in range(2):
        # the second call keeps the kernel's arguments of the first
        close(frozen(*arguments, step=step), wanted)
    with torch.no_grad():
        close(layer(*arguments, step=step), wanted)


def state_of(sequence):
    state = sequence.state()
    return state if isinstance(state, tuple) else (state,)


def test_wrong_input_has_the_same_error(plain):
    frozen = rnnorm.freeze(trained(plain, "batch"))
    for shape in ((2, 3, 4), (2, 3, 3)):
        wrong = torch.randn(shape, dtype=torch.float64)
        with pytest.raises(RuntimeError, match="size"):
            frozen(wrong, plain.state(rows=2), step=0)
    if not isinstance(plain.state(), tuple):
        with pytest.raises(AttributeError, match="tuple"):
            frozen(plain.input(), (plain.state(),), step=0)


@pytest.mark.parametrize("step", [-1, -3])
def test_a_negative_step_is_refused(plain, step):
    frozen = rnnorm.freeze(trained(plain, "batch"))
    state = tuple(torch.cat(2 * [s]) for s in state_of(plain))
    with pytest.raises(ValueError, match="negative"):
        frozen(plain.input(), state if plain.name == "LSTM" else state[0], step=step)


def test_a_view_that_negates_is_read_as_its_values(plain, close):
    frozen = rnnorm.freeze(trained(plain, "batch"))
    x, state = plain.input(), tuple(torch.cat(2 * [s]) for s in state_of(plain))

    def run(x, state):
        return frozen(x, state if plain.name == "LSTM" else state[0], step=1)

    # memory and view differ in sign
    close(run(torch._neg_view(-x), state), run(x, state))
    close(run(x, tuple(torch._neg_view(-s) for s in state)), run(x, state))


def test_training_on_does_not_change_it(plain, close):
    layer = trained(plain, "batch")
    frozen = rnnorm.freeze(layer)
    before = frozen(plain.input())
    layer.train()(plain.input(rows=8, seed=9))
    torch.optim.SGD(layer.parameters(), 1.0).zero_grad()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(1)
    close(frozen(plain.input()), before)
    assert not any(p.requires_grad for p in frozen.parameters())


@pytest.mark.parametrize("kind", [rnnorm.LSTM, nn.LSTM])
def test_a_copy_of_a_layer_that_compiles_itself_does_not_run_the_layer(kind):
    layer = kind(3, 4)
    layer.compile(backend="eager")
    x = torch.randn(5, 2, 3)
    frozen = rnnorm.freeze(nn.Sequential(layer))
    before = frozen(x)[0]
    with torch.no_grad():
        layer.weight_ih_l0.add_(1)
    assert torch.equal(frozen(x)[0], before)
    if kind is rnnorm.LSTM:
        for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert twin._compiled_call_impl is None
    assert layer._compiled_call_impl is not None


@pytest.mark.parametrize("kind", [rnnorm.GRU, nn.GRU])
def test_the_copied_weights_are_put_in_one_block_for_cudnn(kind, monkeypatch):
    model, flattened = nn.Sequential(kind(3, 4)), []
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", lambda rnn: flattened.append(rnn))
    frozen = rnnorm.freeze(model)
    assert flattened == [frozen[0]]


def test_it_refuses_to_train_and_to_take_statistics(plain):
    frozen = rnnorm.freeze(trained(plain, "batch"))
    with pytest.raises(RuntimeError, match="a frozen model keeps its statistics"):
        rnnorm.update_bn([plain.input(rows=8)], frozen)
    assert not frozen.training
    before = frozen.weight_hh_l0.clone()
    with pytest.raises(RuntimeError, match="a frozen model keeps its statistics"):
        frozen.reset_parameters()
    assert torch.equal(frozen.weight_hh_l0, before)
    with pytest.raises(RuntimeError, match="a frozen model cannot train"):
        frozen.train()(plain.input(rows=8))


class Partly(nn.Module):
    """A frozen encoder, which stays in evaluation, and a decoder that trains."""

    def __init__(self, layer):
        super().__init__()
        self.encoder = rnnorm.freeze(layer)
        self.decoder = rnnorm.GRU(layer.hidden_size, 4, norm="batch", initial_noise=0.0)
        self.to(layer.weight_hh_l0.dtype)

    def train(self, mode=True):
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(self, x):
        return self.decoder(self.encoder(x)[0])[0]


@pytest.mark.parametrize("norm", ["batch", "layer", None])
def test_statistics_of_the_rest_of_a_model_leave_a_frozen_part_alone(plain, norm, close, identical):
    # noise would show that it is run as in training
    model, x = Partly(trained(plain, norm, initial_noise=0.5)), plain.input(rows=8)
    frozen = copy.deepcopy(model.encoder.state_dict())
    between = model.encoder(x)[0]
    rnnorm.update_bn([x], model)
    alone = copy.deepcopy(model.decoder)
    alone.reset_running_stats()
    rnnorm.update_bn([between], alone)
    close(model.decoder.state_dict(), alone.state_dict())
    with batch_statistics(model.eval()):
        found = model(x)
    with batch_statistics(alone.eval()):
        close(found, alone(between)[0])
    assert rnnorm.select_horizon(model, lambda model: 0.0) == 1
    identical(model.encoder.state_dict(), frozen)
    assert not model.training


def test_a_frozen_model_has_no_batch_statistics_and_keeps_its_horizon(plain):
    frozen = rnnorm.freeze(trained(plain, "batch"))
    with pytest.raises(RuntimeError, match="no batch statistics"), batch_statistics(frozen):
        pass
    with pytest.raises(ValueError, match="frozen ones apart"):
        rnnorm.select_horizon(frozen, lambda model: 0.0)


def test_a_copy_a_pickle_and_another_dtype_of_it_give_the_same(plain, close):
    layer = trained(plain, "batch")
    frozen = rnnorm.freeze(layer)
    x, state = plain.input(), tuple(torch.cat(2 * [s]) for s in state_of(plain))
    state = state if plain.name == "LSTM" else state[0]
    wanted = layer(x, state, step=1)
    for other in (copy.deepcopy(frozen), pickle.loads(pickle.dumps(frozen)), rnnorm.freeze(frozen)):
        close(other(x, state, step=1), wanted)
    narrow = copy.deepcopy(frozen).float()
    single = tuple(s.float() for s in state) if isinstance(state, tuple) else state.float()
    torch.testing.assert_close(narrow(x.float(), single, step=1)[0], wanted[0].float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_a_frozen_copy_in_a_half_type_is_the_half_model(plain, dtype, identical):
    layer = trained(plain, "batch").to(dtype)
    frozen = rnnorm.freeze(trained(plain, "batch")).to(dtype)
    x, state = plain.input(), tuple(torch.cat(2 * [s]) for s in state_of(plain))
    arguments = x.to(dtype), tuple(s.to(dtype) for s in state)
    arguments = arguments if plain.name == "LSTM" else (arguments[0], *arguments[1])
    identical(frozen(*arguments, step=1), layer(*arguments, step=1))


def test_other_weights_for_one_call_are_seen(plain, close):
    frozen = rnnorm.freeze(trained(plain, "batch"))
    others = {name: p + 1 for name, p in frozen.named_parameters()}
    x, state = plain.input(), tuple(torch.cat(2 * [s]) for s in state_of(plain))
    arguments = x, state if plain.name == "LSTM" else state[0]
    found = torch.func.functional_call(frozen, others, arguments, {"step": 0})
    frozen.load_state_dict(others, strict=False)
    close(found, frozen(*arguments, step=0))


def test_a_parametrized_layer_gives_the_same(plain, close):
    layer = trained(plain, "batch")
    torch.nn.utils.parametrizations.orthogonal(layer, "weight_hh_l1")
    x, state = plain.input(), tuple(torch.cat(2 * [s]) for s in state_of(plain))
    arguments = x, state if plain.name == "LSTM" else state[0]
    close(rnnorm.freeze(layer)(*arguments, step=1), layer(*arguments, step=1))


def test_a_frozen_copy_has_plain_weights_and_leaves_the_models_alone(plain):
    layer, tied = trained(plain, "batch"), nn.Linear(1, 1)
    kinds = [type(layer), nn.Linear]
    tied.weight = layer.weight_hh_l0
    tied.register_buffer("table", torch.ones(3))
    nn.utils.parametrizations.orthogonal(layer, "weight_hh_l0")
    nn.utils.parametrizations.weight_norm(layer, "gamma_input_l1")
    nn.utils.parametrize.register_parametrization(tied, "table", nn.Softplus())
    model = nn.ModuleList([layer, tied])
    before = {n: getattr(layer, n).detach().clone() for n in ("weight_hh_l0", "gamma_input_l1")}
    original = tied.weight.detach().clone()
    frozen = rnnorm.freeze(model)
    assert [*map(type, frozen)] == kinds
    assert "table" in dict(frozen[1].named_buffers())
    for copied in (layer, frozen[0]):
        for name, value in before.items():
            torch.testing.assert_close(getattr(copied, name), value)
    for linear in (tied, frozen[1]):
        assert torch.equal(linear.weight, original)
        assert torch.equal(linear.table, nn.functional.softplus(torch.ones(3)))


def _reassigned(layer):
    # a transposed copy is the same matrix, and not contiguous
    others = {n: v.t().contiguous().t() if v.dim() == 2 else v for n, v in layer.named_parameters()}
    layer.load_state_dict(others, strict=False, assign=True)


CHANGES = {
    **{
        f"pruned {name}": lambda layer, name=name: prune.l1_unstructured(layer, name, 0.5)
        for name in ("weight_ih_l0", "weight_hh_l0", "weight_hh_l1", "bias_ih_l0", "gamma_input_l0")
    },
    "weight norm": lambda layer: nn.utils.weight_norm(layer, "weight_ih_l0"),
    "spectral norm": lambda layer: nn.utils.spectral_norm(layer, "weight_hh_l0"),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_weights_that_are_made_anew_are_seen(plain, change, close):
    layer = trained(plain, "batch")
    change(layer)
    layer.eval()
    x, state = plain.input(), tuple(torch.cat(2 * [s]) for s in state_of(plain))
    arguments = x, state if plain.name == "LSTM" else state[0]
    # a hook computes them; torch copies none that has a graph
    with torch.no_grad():
        layer(x)
    close(rnnorm.freeze(layer)(*arguments, step=1), layer(*arguments, step=1))


AFTERWARDS = {
    "reassigned": _reassigned,
    "parametrized": lambda layer: nn.utils.parametrizations.orthogonal(layer, "weight_hh_l0"),
}


@pytest.mark.parametrize("change", AFTERWARDS.values(), ids=AFTERWARDS)
def test_a_frozen_copy_that_is_changed_gives_the_values_of_the_change(plain, change, close):
    layer = trained(plain, "batch")
    frozen = rnnorm.freeze(layer)
    x, state = plain.input(), tuple(torch.cat(2 * [s]) for s in state_of(plain))
    arguments = x, state if plain.name == "LSTM" else state[0]
    change(layer)
    change(frozen)
    close(frozen(*arguments, step=1), layer(*arguments, step=1))


def test_a_frozen_copy_made_trainable_has_gradients(plain):
    frozen = rnnorm.freeze(trained(plain, "batch")).requires_grad_()
    state = tuple(torch.cat(2 * [s]) for s in state_of(plain))
    frozen(plain.input(), state if plain.name == "LSTM" else state[0], step=0)[0].sum().backward()
    assert all(p.grad is not None for p in frozen.parameters())


def test_to_freeze_a_layer_is_no_run_of_it(plain):
    layer = trained(plain, "batch")
    before = dispatch.calls.copy()
    rnnorm.freeze(layer)
    assert dispatch.calls == before


def test_a_forward_mode_derivative_is_the_models(plain, close):
    layer = trained(plain, "batch")
    x, state = plain.input(), tuple(torch.cat(2 * [s]) for s in state_of(plain))
    state = state if plain.name == "LSTM" else state[0]

    def tangent(module):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            return forward_ad.unpack_dual(module(dual, state, step=1)[0]).tangent

    close(tangent(rnnorm.freeze(layer)), tangent(layer))


def test_parameters_of_another_type_than_the_statistics_run(plain):
    layer = trained(plain, "batch")
    x, state = plain.input(), tuple(torch.cat(2 * [s]) for s in state_of(plain))
    arguments = x, state if plain.name == "LSTM" else state[0]
    frozen = rnnorm.freeze(layer)
    single = {name: b.float() for name, b in frozen.named_buffers() if b.is_floating_point()}
    found = torch.func.functional_call(frozen, single, arguments, {"step": 1})[0]
    torch.testing.assert_close(found, layer(*arguments, step=1)[0], rtol=1e-5, atol=1e-5)


def test_a_parameter_of_another_shape_is_refused(plain):
    frozen = rnnorm.freeze(trained(plain, "batch"))
    x, state = plain.input(), tuple(torch.cat(2 * [s]) for s in state_of(plain))
    frozen.weight_hh_l1 = nn.Parameter(frozen.weight_hh_l1[:, :-1].clone(), requires_grad=False)
    with pytest.raises(RuntimeError, match="shape"):
        frozen(x, state if plain.name == "LSTM" else state[0], step=1)


def test_a_copy_from_a_machine_with_the_kernel_runs_without_it(plain, close, monkeypatch):
    layer = trained(plain, "batch")
    x, state = plain.input(), tuple(torch.cat(2 * [s]) for s in state_of(plain))
    arguments = x, state if plain.name == "LSTM" else state[0]
    wanted = layer(*arguments, step=1)
    frozen = rnnorm.freeze(layer)
    frozen(*arguments, step=1)
    elsewhere = pickle.loads(pickle.dumps(frozen))
    kernels = [kernel for kernel in dispatch.KERNELS if kernel.name != "cpu"]
    monkeypatch.setattr(dispatch, "KERNELS", tuple(kernels))
    close(elsewhere(*arguments, step=1), wanted)


def test_a_forced_kernel_runs(plain):
    frozen = rnnorm.freeze(trained(plain, "batch"))
    state = tuple(torch.cat(2 * [s]) for s in state_of(plain))
    dispatch.calls.clear()
    with rnnorm.use_backend("reference"):
        frozen(plain.input(), state if plain.name == "LSTM" else state[0], step=0)
    assert dispatch.calls == {"reference": 1}


@pytest.mark.parametrize("make", [rnnorm.freeze, rnnorm.fold])
def test_a_copy_without_statistics_warns(make):
    model = nn.ModuleDict({"rnn": rnnorm.GRU(3, 4, norm=rnnorm.BatchNorm(population="shared"))})
    with pytest.warns(UserWarning, match="before any statistic was taken") as caught:
        make(model)
    assert caught[0].filename == __file__


def test_a_stream_in_c_without_statistics_warns_at_its_own_call(tmp_path):
    layer = rnnorm.GRU(3, 4, norm=rnnorm.BatchNorm(population="shared"))
    with pytest.warns(UserWarning, match="before any statistic was taken") as caught:
        rnnorm.export.c(layer, tmp_path / "stream.c")
    assert caught[0].filename == __file__


def test_a_layer_that_cannot_be_copied_is_an_error():
    layer = rnnorm.LSTM(3, 4, norm="batch")
    prune.random_unstructured(layer, "weight_hh_l0", 0.5)
    layer(torch.randn(2, 3, 3))
    with pytest.raises(RuntimeError, match=r"copies, got .*prune\.remove"):
        rnnorm.freeze(layer)
