"""A layer with a norm is a well-behaved torch.nn.Module."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize, prune

import rnnorm

# torch.nn's calls know no step
pytestmark = pytest.mark.filterwarnings("ignore:hx was given without step")

SITES = {"RNN": ["input", "recurrent"], "LSTM": ["input", "recurrent", "cell"]}
SITES["GRU"] = SITES["RNN"]
BUFFERS = ["mean", "var", "rows", "num_batches_tracked"]


@pytest.fixture
def trained(deep, norm):
    """A layer that has seen two minibatches, in training mode."""
    layer = deep.rnnorm(norm=norm)
    for seed in (1, 2):
        _descend(layer, deep.input(rows=4, seed=seed))
    return layer


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


def test_pickling_keeps_values_and_statistics(trained, deep, identical):
    again = pickle.loads(pickle.dumps(trained))
    assert repr(again) == repr(trained)
    identical(list(again.state_dict().values()), list(trained.state_dict().values()))
    _same_future(again, trained, deep, identical)


def test_a_saved_layer_is_loaded_whole(trained, deep, identical):
    file = io.BytesIO()
    torch.save(trained, file)
    file.seek(0)
    _same_future(torch.load(file, weights_only=False), trained, deep, identical)


def test_a_copy_shares_nothing(trained, deep, identical):
    twin = copy.deepcopy(trained)
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    _descend(twin, deep.input(rows=4, length=9, seed=5))
    identical(trained.state_dict()["weight_hh_l0"], before["weight_hh_l0"])
    for name, value in trained.state_dict().items():
        identical(value, before[name])
    _same_future(copy.deepcopy(trained), trained, deep, identical)


def test_a_state_dict_makes_the_same_layer(trained, deep, norm, identical):
    fresh = deep.rnnorm(seed=9, norm=norm)
    fresh.load_state_dict(trained.state_dict())
    _same_future(fresh, trained, deep, identical)


def test_a_state_dict_is_loaded_with_weights_only(trained, deep, norm, identical):
    file = io.BytesIO()
    torch.save(trained.state_dict(), file)
    file.seek(0)
    fresh = deep.rnnorm(seed=9, norm=norm)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    _same_future(fresh, trained, deep, identical)


def test_a_state_dict_is_assigned(trained, deep, norm, identical):
    fresh = deep.rnnorm(seed=9, norm=norm)
    fresh.load_state_dict(copy.deepcopy(trained.state_dict()), assign=True)
    _same_future(fresh, trained, deep, identical)


def test_a_loaded_layer_does_not_share_its_checkpoint(trained, deep, norm):
    state = {name: value.clone() for name, value in trained.state_dict().items()}
    kept = {name: value.clone() for name, value in state.items()}
    fresh = deep.rnnorm(norm=norm)
    fresh.load_state_dict(state)
    _descend(fresh, deep.input(rows=4, seed=6))
    assert all(torch.equal(state[name], kept[name]) for name in kept)


@pytest.mark.parametrize("horizon", [None, 2, 5, 9])
def test_a_checkpoint_of_another_horizon_is_loaded(plain, horizon, identical):
    layer = plain.rnnorm(norm=rnnorm.BatchNorm(horizon=5))
    layer(plain.input(length=7))
    other = plain.rnnorm(seed=9, norm=rnnorm.BatchNorm(horizon=horizon))
    other(plain.input(length=3))
    assert other.load_state_dict(layer.state_dict()).missing_keys == []
    identical(other.eval()(plain.input(length=2)), layer.eval()(plain.input(length=2)))
    if horizon != 2:
        identical(other(plain.input(length=9)), layer(plain.input(length=9)))


def test_torchs_checkpoint_loads_its_part(deep, norm, identical):
    layer, theirs = deep.rnnorm(norm=norm), deep.torch(seed=3)
    with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: .*gamma_input_l0"):
        layer.load_state_dict(theirs.state_dict())
    keys = layer.load_state_dict(theirs.state_dict(), strict=False)
    assert keys.unexpected_keys == []
    identical(layer.weight_hh_l1_reverse, theirs.weight_hh_l1_reverse)


def test_a_normalised_checkpoint_is_unexpected_in_a_plain_layer(deep, norm):
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict: .*gamma_input_l0"):
        deep.rnnorm().load_state_dict(deep.rnnorm(norm=norm).state_dict())


def test_a_checkpoint_of_another_cell_is_an_error_and_leaves_the_statistics(norm):
    lstm, gru = rnnorm.LSTM(3, 4, norm=norm), rnnorm.GRU(3, 4, norm=norm)
    x = torch.randn(5, 3, 3)
    lstm(x), gru(x)
    buffers = {name: value.clone() for name, value in gru.named_buffers()}
    with pytest.raises(RuntimeError, match=r"Error\(s\) in loading state_dict for GRU"):
        gru.load_state_dict(lstm.state_dict())
    for name, value in gru.named_buffers():
        torch.testing.assert_close(value, buffers[name], rtol=0, atol=0)
    gru.eval()(x)


def test_a_refused_checkpoint_leaves_the_statistics_as_long_as_they_were():
    layer = rnnorm.LSTM(3, 4, norm="batch")
    layer(torch.randn(6, 3, 3))
    before = [buffer.clone() for buffer in layer.buffers()]
    for other in (rnnorm.LSTM(3, 5, norm="batch"), rnnorm.GRU(3, 4, norm="batch")):
        other(torch.randn(2, 3, 3))
        with pytest.raises(RuntimeError, match="loading state_dict"):
            layer.load_state_dict(other.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(before, layer.buffers(), strict=True))


def test_a_checkpoint_of_another_size_is_an_error_that_names_the_sizes(norm):
    layer, wider = rnnorm.LSTM(3, 4, norm=norm), rnnorm.LSTM(3, 5, norm=norm)
    x = torch.randn(5, 3, 3)
    layer(x), wider(x)
    with pytest.raises(RuntimeError, match="size mismatch for gamma_input_l0") as error:
        layer.load_state_dict(wider.state_dict())
    if norm == "batch":
        assert "size mismatch for population_input_l0.mean" in str(error.value)
    layer.eval()(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("by", ["conversion", "constructor"])
def test_moments_stay_float32_in_half_types(plain, norm, dtype, by):
    if by == "conversion":
        layer = plain.rnnorm(norm=norm, dtype=torch.float32).to(dtype)
    else:
        layer = plain.rnnorm(norm=norm, dtype=dtype)
    assert {parameter.dtype for parameter in layer.parameters()} == {dtype}
    x = plain.input(rows=16).to(dtype)
    for training in (True, False):
        output, state = layer.train(training)(x)
        assert output.dtype == dtype
        assert {part.dtype for part in (state if type(state) is tuple else (state,))} == {dtype}
        assert output.isfinite().all()
    output.float().pow(2).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
    assert {b.dtype for b in layer.buffers()} <= {torch.float32, torch.int64}


def test_half_and_bfloat16_methods_keep_the_moments(trained):
    for method in ("half", "bfloat16"):
        kinds = {b.dtype for b in getattr(copy.deepcopy(trained).float(), method)().buffers()}
        assert kinds <= {torch.float32, torch.int64}


def test_half_types_are_near_float64(plain, norm):
    exact = plain.rnnorm(norm=norm)
    half = plain.rnnorm(norm=norm)
    half.load_state_dict(exact.state_dict())
    half.bfloat16()
    x = plain.input(rows=16)
    for training in (True, False):
        expected = exact.train(training)(x)[0]
        error = half.train(training)(x.bfloat16())[0].double() - expected
        assert error.pow(2).mean().sqrt() < 0.03 * expected.pow(2).mean().sqrt()


def test_counts_stay_integers_in_every_type(plain):
    layer = plain.rnnorm(norm="batch").float().double().half().float()
    layer(plain.input().float())
    counts = [
        b for name, b in layer.named_buffers() if name.endswith(("rows", "num_batches_tracked"))
    ]
    assert counts
    assert all(count.dtype == torch.int64 and count.min() > 0 for count in counts)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("form", ["dense", "state", "packed"])
def test_autocast_gives_torchs_dtypes(plain, norm, training, weights, form, torch_dtypes, tensors):
    layer, theirs = plain.rnnorm(norm=norm, dtype=weights), plain.torch(dtype=weights)
    state = plain.state()
    cast = tuple(p.to(weights) for p in state) if type(state) is tuple else state.to(weights)
    arguments = {
        "dense": (plain.input().to(weights),),
        "state": (plain.input().to(weights), cast),
        "packed": (plain.packed().to(weights),),
    }[form]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(plain.input(rows=8).to(weights))
        expected, _ = torch_dtypes(theirs.train(training), *arguments)
        result = layer.train(training)(*arguments)
        assert [part.dtype for part in tensors(result)] == expected
    sum(part.float().pow(2).sum() for part in tensors(result)).backward()
    assert {parameter.grad.dtype for parameter in layer.parameters()} == {weights}
    assert {b.dtype for b in layer.buffers()} <= {torch.float32, torch.float64, torch.int64}


def test_autocast_is_near_float32(plain, norm):
    layer = plain.rnnorm(norm=norm, dtype=torch.float32)
    twin = copy.deepcopy(layer)
    x = plain.input(rows=16).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(x)[0]
    expected = twin(x)[0]
    assert (found - expected).pow(2).mean().sqrt() < 0.03 * expected.pow(2).mean().sqrt()


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
    _same_future(layer, deep.rnnorm(norm=norm), deep, identical)


def test_reset_parameters_forgets_scales_and_statistics(trained, deep, norm, identical):
    torch.manual_seed(0)
    trained.reset_parameters()
    _same_future(trained, deep.rnnorm(norm=norm), deep, identical)


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
    _descend(trained, deep.input(rows=4))
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


def _descend(layer, x):
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(x)[0].pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def _same_future(one, other, sequence, identical):
    """Both give the same outputs and statistics in training and in evaluation."""
    for layer in (one, other):
        layer.train()
        _descend(layer, sequence.input(rows=4, length=6, seed=7))
    identical(list(one.state_dict().values()), list(other.state_dict().values()))
    identical(one.eval()(sequence.input(length=8)), other.eval()(sequence.input(length=8)))
