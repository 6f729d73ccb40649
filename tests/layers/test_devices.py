"""Tensors on different devices are refused, and the default device is not where indices are."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import rnnorm
from rnnorm.diagnostics import tanh_derivative
from rnnorm.layers.norm_stabilizer import norm_stabilizer

LAYERS = ("RNN", "LSTM", "GRU")
CELLS = ("RNNCell", "LSTMCell", "GRUCell")


def layer(name, **options):
    return getattr(rnnorm, name)(3, 4, **options)


def states(name, device):
    h = torch.zeros(1, 6, 4, device=device)
    h = h if name in LAYERS else h[0]
    return (h, h) if name.startswith("LSTM") else h


@pytest.mark.parametrize("name", LAYERS + CELLS)
def test_weights_elsewhere_are_refused(name, norm):
    x = torch.zeros(5, 6, 3) if name in LAYERS else torch.zeros(6, 3)
    with pytest.raises(RuntimeError, match="input tensor at cpu and parameter tensor at meta"):
        layer(name, norm=norm, device="meta")(x)


@pytest.mark.parametrize("name", LAYERS + CELLS)
def test_states_elsewhere_are_refused(name, norm):
    x = torch.zeros(5, 6, 3) if name in LAYERS else torch.zeros(6, 3)
    with pytest.raises(RuntimeError, match="input tensor at cpu and hidden tensor at meta"):
        layer(name, norm=norm)(x, states(name, "meta"))


@pytest.mark.parametrize("part", ["gamma_recurrent_l0", "bias_hh_l0", "population_cell_l0"])
def test_one_part_elsewhere_is_refused(part):
    lstm = layer("LSTM", norm="batch")
    lstm(torch.randn(5, 6, 3))
    if part in lstm._parameters:
        lstm._parameters[part] = torch.nn.Parameter(lstm._parameters[part].to("meta"))
    else:
        lstm._modules[part].to("meta")
    with pytest.raises(RuntimeError, match="parameter tensor at meta"):
        lstm.eval()(torch.randn(5, 6, 3), step=0)


@pytest.fixture
def elsewhere():
    """As torch.set_default_device where the layer and its input are not."""
    with torch.device("meta"):
        yield


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("chosen", [None, "batch", "bn-e*", "layer"])
def test_the_default_device_may_be_another(name, chosen, request, close):
    torch.manual_seed(0)
    given = layer(name, norm=chosen, bidirectional=True, initial_noise=0.0)
    x, lengths = torch.randn(5, 6, 3), torch.tensor([5, 1, 3, 5, 2, 5])
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    calls = {"dense": (x, {}), "padded": (x, {"lengths": lengths.tolist()}), "packed": (packed, {})}
    wanted = {kind: given(data, **options) for kind, (data, options) in calls.items()}
    request.getfixturevalue("elsewhere")
    for kind, (data, options) in calls.items():
        close(given(data, **options), wanted[kind])


@pytest.mark.parametrize("name", CELLS)
def test_so_may_that_of_a_cell(name, norm, request, close):
    cell, x = layer(name, norm=norm), torch.randn(6, 3)
    wanted = cell(x)
    request.getfixturevalue("elsewhere")
    close(cell(x), wanted)


@pytest.mark.parametrize("name", LAYERS)
def test_so_may_that_of_a_frozen_copy(name, norm, request, close):
    trained, x, state = layer(name, norm=norm), torch.randn(5, 6, 3), states(name, "cpu")
    trained(x)
    frozen = rnnorm.freeze(trained)
    wanted = frozen(x, state, step=0)
    request.getfixturevalue("elsewhere")
    close(frozen(x, state, step=0), wanted)


def test_so_may_that_of_the_norm_stabilizer(request):
    output, lengths = torch.randn(5, 2, 4), torch.tensor([5, 3])
    wanted = norm_stabilizer(output, 1.0, lengths=lengths)
    request.getfixturevalue("elsewhere")
    torch.testing.assert_close(norm_stabilizer(output, 1.0, lengths=lengths), wanted)


def test_so_may_that_of_the_derivative_of_tanh(request):
    spread = torch.tensor([0.5, 1.0])
    wanted = tanh_derivative(spread)
    request.getfixturevalue("elsewhere")
    torch.testing.assert_close(tanh_derivative(spread), wanted)
