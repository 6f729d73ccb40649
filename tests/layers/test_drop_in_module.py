"""With norm=None the layer is as good a torch.nn.Module as torch.nn's own."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize, prune

import rnnorm


def test_pickling_keeps_values_and_type(sequence, same):
    ours, theirs = sequence.twins(dropout=0.0)
    ours(sequence.input())
    again = pickle.loads(pickle.dumps(ours))
    assert type(again) is type(ours)
    assert repr(again) == repr(theirs)
    same(again(sequence.input()), theirs(sequence.input()))
    same(again.all_weights, theirs.all_weights)


def test_other_weights_in_the_list_of_all_are_refused(plain):
    layer = plain.rnnorm()
    others = [torch.zeros_like(weight) for weight in layer._flat_weights]
    with pytest.raises(RuntimeError, match="_flat_weights is no place to put other weights"):
        layer._flat_weights = others
    layer._flat_weights = list(layer._flat_weights)


def test_a_saved_layer_is_loaded_whole(plain, same):
    ours, theirs = plain.twins()
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    same(torch.load(file, weights_only=False)(plain.input()), theirs(plain.input()))


def test_a_copy_shares_nothing(sequence, same):
    ours, theirs = sequence.twins()
    twin = copy.deepcopy(ours)
    same(twin(sequence.input()), theirs(sequence.input()))
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    same(twin(sequence.input()), theirs(sequence.input()))
    same(list(twin.parameters()), list(theirs.parameters()))


def test_a_copy_trains_alone(plain, same):
    ours, theirs = plain.twins()
    ours(plain.input())
    twin = copy.deepcopy(ours)
    _descend(twin, plain.input())
    same(ours(plain.input()), theirs(plain.input()))
    _descend(theirs, plain.input())
    same(twin(plain.input()), theirs(plain.input()))


def test_memory_is_shared_on_request(plain, same):
    ours, theirs = plain.twins()
    assert ours.share_memory() is ours
    assert all(parameter.is_shared() for parameter in ours.parameters())
    same(ours(plain.input()), theirs(plain.input()))


def test_conversions_are_seen_by_the_next_call(plain, same):
    ours, theirs = plain.twins(dtype=torch.float32)
    ours(plain.input().float())
    same(ours.double()(plain.input()), theirs.double()(plain.input()))


def test_assigned_checkpoints_are_seen_by_the_next_call(plain, same):
    ours, theirs = plain.rnnorm(seed=1), plain.torch(seed=2)
    ours(plain.input())
    ours.load_state_dict(theirs.state_dict(), assign=True)
    same(ours(plain.input()), theirs(plain.input()))


def test_new_parameters_are_seen_by_the_next_call(plain, same):
    ours, theirs = plain.rnnorm(seed=1), plain.torch(seed=2)
    ours(plain.input())
    for name, parameter in theirs.named_parameters():
        setattr(ours, name, nn.Parameter(parameter.detach().clone()))
    same(ours(plain.input()), theirs(plain.input()))
    same(ours.all_weights, theirs.all_weights)


def test_new_data_is_seen_by_the_next_call(plain, same):
    ours, theirs = plain.rnnorm(seed=1), plain.torch(seed=2)
    ours(plain.input())
    for name, parameter in theirs.named_parameters():
        getattr(ours, name).data = parameter.detach().clone()
    same(ours(plain.input()), theirs(plain.input()))


def test_training_steps_are_torchs(deep, same):
    ours, theirs = deep.twins()
    for _ in range(3):
        _descend(ours, deep.input())
        _descend(theirs, deep.input())
    same(list(ours.parameters()), list(theirs.parameters()))


def test_frozen_parameters_get_no_gradient(plain, same):
    ours, theirs = plain.twins()
    for layer in (ours, theirs):
        layer.weight_hh_l0.requires_grad_(False)
        layer(plain.input())[0].sum().backward()
    assert ours.weight_hh_l0.grad is None
    same(ours.weight_ih_l0.grad, theirs.weight_ih_l0.grad)


def test_functional_call_uses_the_given_weights(sequence, same):
    ours, theirs = sequence.rnnorm(seed=1), sequence.torch(seed=2)
    before = ours(sequence.input())
    weights = dict(theirs.named_parameters())
    same(functional_call(ours, weights, (sequence.input(),)), theirs(sequence.input()))
    same(ours(sequence.input()), before)


def test_functional_call_takes_some_of_the_weights(plain, same):
    ours, theirs = plain.twins()
    some = {"weight_hh_l0": torch.zeros_like(theirs.weight_hh_l0)}
    x = plain.input()
    same(functional_call(ours, some, (x,)), functional_call(theirs, some, (x,)))


def test_gradients_of_functional_call_are_torchs(plain, same):
    found = []
    for layer in plain.twins():

        def loss(weights, layer=layer):
            return functional_call(layer, weights, (plain.input(),))[0].pow(2).sum()

        weights = dict(layer.named_parameters())
        found.append(list(torch.func.grad(loss)(weights).values()))
    same(*found)


def test_forward_hooks_see_what_they_see_in_torch(plain, same):
    seen = []
    for layer in plain.twins():
        calls = []
        layer.register_forward_pre_hook(lambda _, args, kept=calls: kept.append(args))
        layer.register_forward_hook(lambda _, args, out, kept=calls: kept.append((args, out)))
        layer(plain.input(), plain.state())
        seen.append(calls)
    same(*seen)


def test_forward_hooks_change_what_they_change_in_torch(plain, same):
    ours, theirs = plain.twins()
    for layer in (ours, theirs):
        layer.register_forward_pre_hook(lambda _, args: (args[0] * 2, *args[1:]))
        layer.register_forward_hook(lambda _, args, out: (out[0] + 1, out[1]))
    same(ours(plain.input()), theirs(plain.input()))


def test_backward_hooks_see_what_they_see_in_torch(plain, same):
    seen = []
    for layer in plain.twins():
        calls = []
        layer.register_full_backward_pre_hook(lambda _, out, kept=calls: kept.append(out))
        layer.register_full_backward_hook(lambda _, into, out, kept=calls: kept.append((into, out)))
        layer.weight_hh_l0.register_hook(lambda gradient, kept=calls: kept.append(gradient))
        layer(plain.input().requires_grad_())[0].pow(2).sum().backward()
        seen.append(calls)
    assert seen[0]
    same(seen[0], seen[1])


def test_meta_layers_give_shapes(sequence, same):
    ours, theirs = sequence.twins(device="meta")
    x = sequence.input().to("meta")
    found, expected = ours(x), theirs(x)
    assert found[0].device.type == "meta"
    _same_shapes(found, expected)


def test_a_meta_layer_becomes_real(plain, same):
    ours = plain.rnnorm(device="meta").to_empty(device="cpu")
    torch.manual_seed(0)
    ours.reset_parameters()
    same(ours(plain.input()), plain.torch()(plain.input()))


PARAMETRIZATIONS = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
}


@pytest.fixture(params=PARAMETRIZATIONS.values(), ids=PARAMETRIZATIONS)
def parametrization(request):
    return request.param


def test_any_weight_takes_a_parametrization(deep, parametrization, same):
    last = [n for n, _ in deep.rnnorm().named_parameters() if n.endswith("_l1_reverse")]
    for name in last:
        ours = deep.rnnorm()
        ours(deep.input())
        parametrization(ours, name)
        with torch.no_grad():
            ours.parametrizations[name][0].eval()
            for original in ours.parametrizations[name].parameters():
                original.mul_(3.0).add_(0.1)
        theirs = _holding_the_computed_weights(deep, ours)
        same(ours(deep.input()), theirs(deep.input()))


def test_all_weights_take_a_parametrization_at_once(deep, parametrization, same, gradients):
    ours = deep.rnnorm()
    for name, _ in list(ours.named_parameters()):
        parametrization(ours, name)
    ours.eval()
    theirs = _holding_the_computed_weights(deep, ours)
    same(ours(deep.input()), theirs(deep.input()))
    # of a vector, weight norm's direction has no gradient but rounding
    originals = [parameter for parameter in ours.parameters() if parameter.dim() > 1]
    assert all(parameter.abs().sum() > 0 for parameter in gradients(ours(deep.input()), originals))


def test_a_training_step_moves_the_originals(plain, parametrization, same):
    ours = plain.rnnorm()
    parametrization(ours, "weight_hh_l0")
    before = [original.detach().clone() for original in ours.parameters()]
    output = ours(plain.input())[0]
    _descend(ours, plain.input())
    assert all((old != new).any() for old, new in zip(before, ours.parameters(), strict=True))
    ours.eval()
    theirs = _holding_the_computed_weights(plain, ours)
    same(ours(plain.input()), theirs(plain.input()))
    assert not torch.equal(ours(plain.input())[0], output)


def test_a_parametrized_layer_is_copied_and_converted(plain, parametrization, same):
    ours = plain.rnnorm(dtype=torch.float32)
    parametrization(ours, "weight_hh_l0")
    twin = copy.deepcopy(ours).double().eval()
    theirs = _holding_the_computed_weights(plain, twin)
    same(twin(plain.input()), theirs(plain.input()))


def test_a_removed_parametrization_leaves_its_weight(plain, parametrization, same):
    ours = plain.rnnorm()
    parametrization(ours, "weight_ih_l0")
    ours.eval()
    expected = ours(plain.input())
    parametrize.remove_parametrizations(ours, "weight_ih_l0")
    same(ours(plain.input()), expected)
    assert {name for name, _ in ours.named_parameters()} == {
        name for name, _ in plain.torch().named_parameters()
    }


def test_a_parametrized_state_dict_is_loaded(plain, parametrization, same):
    ours, other = plain.rnnorm(seed=1), plain.rnnorm(seed=2)
    for layer in (ours, other):
        parametrization(layer, "weight_hh_l0")
        layer.eval()
    other.load_state_dict(ours.state_dict())
    same(other(plain.input()), ours(plain.input()))


class _Counted(nn.Module):
    """A parametrization that counts how often its weight is computed."""

    times = 0

    def forward(self, weight):
        self.times += 1
        return 2 * weight


@pytest.mark.parametrize("norm", [None, "layer"])
def test_a_call_computes_a_parametrized_weight_no_more_often_than_torch(plain, norm):
    times = []
    for layer in (plain.torch(), plain.rnnorm(norm=norm)):
        counted = _Counted()
        parametrize.register_parametrization(layer, "weight_hh_l0", counted)
        layer(plain.input())
        counted.times = 0
        layer(plain.input())
        times.append(counted.times)
    assert 1 <= times[1] <= times[0]


def _delete_then_set(layer, name):
    weight = getattr(layer, name)
    delattr(layer, name)
    setattr(layer, name, nn.Parameter(weight.detach()))


REPLACEMENTS = {
    "weight_norm": nn.utils.weight_norm,
    "spectral_norm": nn.utils.spectral_norm,
    "prune": lambda layer, name: prune.l1_unstructured(layer, name, amount=2),
    "delete-then-set": _delete_then_set,
}


@pytest.mark.parametrize("replace", REPLACEMENTS.values(), ids=REPLACEMENTS)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated:FutureWarning")
def test_the_last_weight_is_replaced_as_in_torch(deep, replace, same):
    ours, theirs = deep.twins()
    names = list(dict(theirs.named_parameters()))
    if replace is nn.utils.spectral_norm:
        # for matrices
        names = [name for name in names if name.startswith("weight")]
    name = names[-1]
    for layer in (ours, theirs):
        torch.manual_seed(3)
        replace(layer, name)
    same(ours(deep.input()), theirs(deep.input()))
    _descend(ours, deep.input())
    _descend(theirs, deep.input())
    # spectral_norm takes another step towards the largest singular value at each call
    ours.eval(), theirs.eval()
    same(ours(deep.input()), theirs(deep.input()))


@pytest.mark.parametrize("name", ["weight_ih_l0", "weight_hh_l1_reverse", "bias_hh_l0"])
def test_pruning_is_seen_by_the_next_call(deep, name, same):
    ours = deep.rnnorm()
    ours(deep.input())
    prune.l1_unstructured(ours, name, amount=0.5)
    assert (getattr(ours, name) == 0).double().mean() == 0.5
    theirs = _holding_the_computed_weights(deep, ours)
    same(ours(deep.input()), theirs(deep.input()))
    _descend(ours, deep.input())
    found = ours(deep.input())  # the mask is applied to the moved weight before the call
    same(found, _holding_the_computed_weights(deep, ours)(deep.input()))
    prune.remove(ours, name)
    same(ours(deep.input()), found)
    assert (getattr(ours, name) == 0).double().mean() == 0.5


def test_a_layer_inside_a_model_is_found_by_name(plain):
    model = nn.ModuleDict({"rnn": plain.rnnorm(), "head": nn.Linear(4, 2)})
    assert "rnn.weight_hh_l0" in model.state_dict()
    assert isinstance(model["rnn"], getattr(rnnorm, plain.name))


def _descend(layer, x):
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(x)[0].pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def _holding_the_computed_weights(sequence, ours):
    theirs = sequence.torch()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.copy_(getattr(ours, name))
    return theirs


def _same_shapes(ours, theirs):
    if isinstance(ours, tuple):
        for our_part, their_part in zip(ours, theirs, strict=True):
            _same_shapes(our_part, their_part)
    else:
        assert (ours.shape, ours.dtype, ours.device) == (theirs.shape, theirs.dtype, theirs.device)
