"""A layer with a norm is pickled, copied and saved, and loads checkpoints that fit it."""

import copy
import io
import pickle

import pytest
import torch

import rnnorm
from descent import descend, same_future

# torch.nn's calls know no step
pytestmark = pytest.mark.filterwarnings("ignore:hx was given without step")


def test_pickling_keeps_values_and_statistics(trained, deep, identical):
    again = pickle.loads(pickle.dumps(trained))
    assert repr(again) == repr(trained)
    identical(list(again.state_dict().values()), list(trained.state_dict().values()))
    same_future(again, trained, deep, identical)


def test_a_saved_layer_is_loaded_whole(trained, deep, identical):
    file = io.BytesIO()
    torch.save(trained, file)
    file.seek(0)
    same_future(torch.load(file, weights_only=False), trained, deep, identical)


def test_a_copy_shares_nothing(trained, deep, identical):
    twin = copy.deepcopy(trained)
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    descend(twin, deep.input(rows=4, length=9, seed=5))
    identical(trained.state_dict()["weight_hh_l0"], before["weight_hh_l0"])
    for name, value in trained.state_dict().items():
        identical(value, before[name])
    same_future(copy.deepcopy(trained), trained, deep, identical)


def test_a_state_dict_makes_the_same_layer(trained, deep, norm, identical):
    fresh = deep.rnnorm(seed=9, norm=norm)
    fresh.load_state_dict(trained.state_dict())
    same_future(fresh, trained, deep, identical)


def test_a_state_dict_is_loaded_with_weights_only(trained, deep, norm, identical):
    file = io.BytesIO()
    torch.save(trained.state_dict(), file)
    file.seek(0)
    fresh = deep.rnnorm(seed=9, norm=norm)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    same_future(fresh, trained, deep, identical)


def test_a_state_dict_is_assigned(trained, deep, norm, identical):
    fresh = deep.rnnorm(seed=9, norm=norm)
    fresh.load_state_dict(copy.deepcopy(trained.state_dict()), assign=True)
    same_future(fresh, trained, deep, identical)


def test_a_loaded_layer_does_not_share_its_checkpoint(trained, deep, norm):
    state = {name: value.clone() for name, value in trained.state_dict().items()}
    kept = {name: value.clone() for name, value in state.items()}
    fresh = deep.rnnorm(norm=norm)
    fresh.load_state_dict(state)
    descend(fresh, deep.input(rows=4, seed=6))
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
