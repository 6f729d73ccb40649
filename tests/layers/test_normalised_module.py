"""A layer with a norm is a well-behaved torch.nn.Module."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize, prune

import rnnorm
from descent import descend, same_future

# torch.nn's calls know no step
pytestmark = pytest.mark.filterwarnings("ignore:hx was given without step")

SITES = {"RNN": ["input", "recurrent"], "LSTM": ["input", "recurrent", "cell"]}
SITES["GRU"] = SITES["RNN"]
BUFFERS = ["mean", "var", "rows", "num_batches_tracked"]


def test_without_a_norm_there_is_nothing_new(deep):
    assert list(deep.rnnorm(norm=None).state_dict()) == list(deep.torch().state_dict())


def test_batch_norm_adds_the_parameters_and_buffers_of_its_sites(deep):
    layer = deep.rnnorm(norm="batch")
    suffixes = ["_l0", "_l0_reverse", "_l1", "_l1_reverse"]
    sites = SITES[deep.name]
    parameters = {f"gamma_{site}{suffix}" for site in sites for suffix in suffixes}
    if deep.name == "LSTM":
        parameters |= {f"beta_cell{suffix}" for suffix in suffixes}
    buffers = {
        f"population_{site}{suffix}.{buffer}"
        for site in sites
        for suffix in suffixes
        for buffer in BUFFERS
    }
    torchs = {name for name, _ in deep.torch().named_parameters()}
    assert {name for name, _ in layer.named_parameters()} == torchs | parameters
    assert {name for name, _ in layer.named_buffers()} == buffers


def test_layer_norm_has_no_buffers(deep):
    layer = deep.rnnorm(norm="layer")
    assert list(layer.buffers()) == []
    assert {name for name, _ in layer.named_parameters()} == {
        name for name, _ in deep.rnnorm(norm="batch").named_parameters()
    }


def test_the_shift_of_the_cell_stays_without_biases():
    names = dict(rnnorm.LSTM(3, 4, bias=False, norm="batch").named_parameters())
    assert "beta_cell_l0" in names
    assert not any(name.startswith("bias") for name in names)


def test_scales_and_shifts_have_the_width_of_their_site(deep):
    gates = {"RNN": 1, "LSTM": 4, "GRU": 3}[deep.name]
    for name, parameter in deep.rnnorm(norm="batch").named_parameters():
        if name.startswith(("gamma_input", "gamma_recurrent")):
            assert parameter.shape == (gates * 4,)
        elif name.startswith(("gamma", "beta")):
            assert parameter.shape == (4,)


def test_weights_are_drawn_as_in_torch_and_scales_are_not_drawn(deep, norm, identical):
    theirs, layer = deep.torch(), deep.rnnorm(norm=norm)
    found = dict(layer.named_parameters())
    identical([found[name] for name, _ in theirs.named_parameters()], list(theirs.parameters()))
    gamma = 0.1 if norm == "batch" else 1.0
    for name, parameter in found.items():
        if name.startswith("gamma"):
            assert parameter.eq(gamma).all()
        elif name.startswith("beta"):
            assert parameter.eq(0).all()


def test_a_norm_by_name_is_the_dataclass(deep):
    for name, spec in (("batch", rnnorm.BatchNorm()), ("layer", rnnorm.LayerNorm())):
        by_name, by_spec = deep.rnnorm(norm=name), deep.rnnorm(norm=spec)
        torch.testing.assert_close(by_name(deep.input()), by_spec(deep.input()), rtol=0, atol=0)


def test_the_repr_tells_the_norm(deep):
    plain, batch, layer = (repr(deep.rnnorm(norm=norm)) for norm in (None, "batch", "layer"))
    assert len({plain, batch, layer}) == 3
    assert "norm" not in plain
    assert "norm" in batch
    assert "norm" in layer


@pytest.mark.parametrize("wrong", ["batchnorm", "", "Batch"])
def test_an_unknown_norm_is_an_error_that_lists_the_names(plain, wrong):
    with pytest.raises(ValueError, match=rf"norm must be .*batch.*layer.*got '{wrong}'"):
        plain.rnnorm(norm=wrong)


@pytest.mark.parametrize("wrong", [1, True, nn.BatchNorm1d, ["batch"]], ids=repr)
def test_a_norm_of_another_type_is_an_error(plain, wrong):
    with pytest.raises(TypeError, match=r"norm must be .*BatchNorm"):
        plain.rnnorm(norm=wrong)


@pytest.mark.parametrize("name", ["norm", "cell"])
def test_a_module_of_a_subclass_does_not_take_the_place_of_the_layers_own(plain, norm, name):
    layer = plain.rnnorm(norm=norm)
    with pytest.raises(TypeError, match=f"{name} is what the layer itself computes with"):
        setattr(layer, name, nn.LayerNorm(3))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_command_line_finds_the_norm():
    # of an LSTM: it gives torch.nn's RNN and GRU a proj_size, which they refuse
    jsonargparse = pytest.importorskip("jsonargparse")
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(nn.Module, "rnn")
    sizes = ["--rnn.input_size=3", "--rnn.hidden_size=4"]
    given = parser.parse_args(["--rnn=rnnorm.LSTM", *sizes, "--rnn.norm=layer"])
    made = parser.instantiate_classes(given).rnn
    assert repr(made) == repr(rnnorm.LSTM(3, 4, norm="layer"))


def test_a_module_is_no_norm_where_there_is_none(plain):
    with pytest.raises(TypeError, match="give the module LayerNorm another name"):
        plain.rnnorm().norm = nn.LayerNorm(3)
    with pytest.raises(
        TypeError, match=r"an rnnorm\.LayerNorm .*, got <class 'torch\.nn\..*LayerNorm'>"
    ):
        plain.rnnorm(norm=nn.LayerNorm(3))


@pytest.mark.parametrize("given", [None, "batch"])
def test_reset_parameters_draws_a_subclass_own_scales_as_torch_does(given):
    layer = rnnorm.LSTM(3, 4, norm=given)
    layer.gamma_out = nn.Parameter(torch.full((4,), 3.0))
    layer.reset_parameters()
    assert layer.gamma_out.abs().max() <= 0.5
    assert layer.gamma_out.unique().numel() == 4


def test_forward_hooks_see_arguments_and_results(deep, norm):
    layer, seen = deep.rnnorm(norm=norm), []
    layer.register_forward_pre_hook(lambda _, args, kw: seen.append((args, kw)), with_kwargs=True)
    layer.register_forward_hook(lambda _, args, out: seen.append((args, out)))
    x, lengths = deep.input(), torch.tensor([5, 4, 3])
    result = layer(x, lengths=lengths)
    assert seen[0][0][0] is x
    assert seen[0][1]["lengths"] is lengths
    assert seen[1][1] is result


def test_backward_hooks_see_gradients(deep, norm):
    layer, layers, scales = deep.rnnorm(norm=norm), [], []
    layer.register_full_backward_hook(lambda _, into, out: layers.append((into, out)))
    layer.gamma_recurrent_l0.register_hook(scales.append)
    x = deep.input().requires_grad_()
    layer(x)[0].pow(2).sum().backward()
    ((into, _),) = layers
    assert torch.equal(into[0], x.grad)
    assert torch.equal(scales[0], layer.gamma_recurrent_l0.grad)


def test_functional_call_uses_the_given_parameters_and_buffers(trained, deep, norm, identical):
    other = deep.rnnorm(seed=9, norm=norm)
    other(deep.input(rows=4, seed=8))
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    trained.eval(), other.eval()
    given = {**dict(other.named_parameters()), **dict(other.named_buffers())}
    x = deep.input()
    identical(functional_call(trained, given, (x,)), other(x))
    identical(list(trained.state_dict().values()), list(before.values()))


def test_functional_call_differentiates_the_scales(plain, norm, close):
    layer = plain.rnnorm(norm=norm)
    layer(plain.input())
    layer.eval()
    x, parameters = plain.input(), dict(layer.named_parameters())

    def loss(parameters):
        return functional_call(layer, parameters, (x,))[0].pow(2).sum()

    found = torch.func.grad(loss)(parameters)
    layer(x)[0].pow(2).sum().backward()
    close(list(found.values()), [parameter.grad for parameter in parameters.values()])


@pytest.mark.parametrize("training", [True, False])
def test_meta_layers_give_shapes(deep, norm, training):
    layer = deep.rnnorm(norm=norm, device="meta").train(training)
    assert {t.device.type for t in layer.state_dict().values()} == {"meta"}
    output, state = layer(deep.input().to("meta"))
    expected, expected_state = deep.torch()(deep.input())
    assert (output.shape, output.device.type) == (expected.shape, "meta")
    parts = zip(*([s] if torch.is_tensor(s) else s for s in (state, expected_state)), strict=True)
    assert all(found.shape == wanted.shape for found, wanted in parts)


def test_a_meta_layer_becomes_real(deep, norm, identical):
    layer = deep.rnnorm(norm=norm, device="meta").to_empty(device="cpu")
    torch.manual_seed(0)
    layer.reset_parameters()
    same_future(layer, deep.rnnorm(norm=norm), deep, identical)


def test_reset_parameters_forgets_scales_and_statistics(trained, deep, norm, identical):
    torch.manual_seed(0)
    trained.reset_parameters()
    same_future(trained, deep.rnnorm(norm=norm), deep, identical)


class _Doubled(nn.Module):
    def forward(self, value):
        return 2 * value

    def right_inverse(self, value):
        return value / 2


def test_reset_parameters_goes_through_parametrizations():
    layer = rnnorm.LSTM(3, 4, norm="batch", learn_initial_state=True)
    names = ("gamma_input_l0", "beta_cell_l0", "h_0")
    for name in names:
        parametrize.register_parametrization(layer, name, _Doubled())
    layer.reset_parameters()
    for name, value in zip(names, (0.1, 0.0, 0.0), strict=True):
        torch.testing.assert_close(
            getattr(layer, name), torch.full_like(getattr(layer, name), value)
        )
    parametrize.register_parametrization(layer, "gamma_cell_l0", nn.Identity())
    with pytest.raises(RuntimeError, match="right_inverse"):
        layer.reset_parameters()


def test_reset_parameters_passes_over_a_scale_that_is_gone():
    layer = rnnorm.LSTM(3, 4, norm="batch")
    layer.gamma_input_l0 = None
    nn.init.ones_(layer.beta_cell_l0)
    layer.reset_parameters()
    assert layer.gamma_input_l0 is None
    assert not layer.beta_cell_l0.any()


def test_memory_is_shared_on_request(trained, deep):
    trained.share_memory()
    assert all(value.is_shared() for value in trained.state_dict().values())


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
@pytest.mark.parametrize(
    "name", ["gamma_input_l0", "gamma_recurrent_l1_reverse", "weight_hh_l0", "weight_ih_l1"]
)
def test_scales_and_weights_take_a_parametrization(trained, deep, norm, name, kind, identical):
    getattr(parametrizations, kind)(trained, name)
    with torch.no_grad():
        for original in trained.parametrizations[name].parameters():
            original.mul_(2.0).add_(0.1)
    trained.eval()
    theirs = deep.rnnorm(norm=norm)
    values = {
        key: getattr(trained, key) if hasattr(trained, key) else trained.state_dict()[key]
        for key in theirs.state_dict()
    }
    theirs.load_state_dict(values)
    identical(trained(deep.input()), theirs.eval()(deep.input()))
    trained.train()
    before = [o.detach().clone() for o in trained.parametrizations[name].parameters()]
    descend(trained, deep.input(rows=4))
    after = trained.parametrizations[name].parameters()
    assert any((old != new).any() for old, new in zip(before, after, strict=True))


def test_pruned_scales_silence_their_features(plain, norm):
    layer = plain.rnnorm(norm=norm)
    prune.l1_unstructured(layer, "gamma_input_l0", amount=1.0)
    first, second = (layer(plain.input(seed=seed))[0] for seed in (1, 2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_statistics_get_no_gradient_and_are_no_parameters(trained):
    assert not any(buffer.requires_grad for buffer in trained.buffers())
    assert not any("population" in name for name, _ in trained.named_parameters())


def test_evaluation_writes_to_no_buffer(trained, deep):
    before = {name: value.clone() for name, value in trained.named_buffers()}
    trained.eval()(deep.input(length=9, rows=4))
    assert all(torch.equal(value, before[name]) for name, value in trained.named_buffers())


def test_training_without_gradients_still_takes_statistics(deep):
    first, second = deep.rnnorm(norm="batch"), deep.rnnorm(norm="batch")
    first(deep.input())
    with torch.no_grad():
        second(deep.input())
    for one, other in zip(first.buffers(), second.buffers(), strict=True):
        assert torch.equal(one, other)
        assert one.numel() > 0


def test_evaluation_before_any_statistic_warns_once(plain):
    layer = plain.rnnorm(norm="batch").eval()
    with pytest.warns(UserWarning, match="statistic") as warned:
        layer(plain.input())
    assert len(warned) == 1
    layer(plain.input())  # here a warning is an error
