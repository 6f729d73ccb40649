"""LiGRU, IndRNN, MIRNN, and options of LSTM and GRU that torch.nn lacks, as whole layers."""

import copy
import pickle
from functools import partial

import pytest
import torch
from cases import assert_all_close, gradients, run

import definition
import rnnorm
from rnnorm import BatchNorm, LayerNorm
from rnnorm.kernels import dispatch

KINDS = {
    "LiGRU": rnnorm.LiGRU,
    "LiGRU-tanh": partial(rnnorm.LiGRU, nonlinearity="tanh"),
    "IndRNN": rnnorm.IndRNN,
    "IndRNN-tanh": partial(rnnorm.IndRNN, nonlinearity="tanh"),
    "MIRNN": rnnorm.MIRNN,
    "LSTM-full": partial(rnnorm.LSTM, peephole="full"),
    "GRU-both": partial(rnnorm.GRU, reset_after="both"),
}
NORMS = {
    "none": None,
    "batch": BatchNorm(min_rows=2),
    "sequence": BatchNorm(input="sequence", recurrent=None, cell=None, momentum=0.05),
    "joint": BatchNorm(input=None, recurrent=None, joint="frame", cell=None, min_rows=2),
    "layer": LayerNorm(eps=1e-2),
}
LENGTHS = (3, 5, 2, 5)


def make(name, norm=None, **options):
    torch.manual_seed(0)
    layer = KINDS[name](3, 4, norm=norm, initial_noise=0.0, dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter_name, parameter in layer.named_parameters():
            if parameter_name.startswith(("gamma", "alpha", "beta")):
                parameter.uniform_(0.3, 0.9)
    return layer


def draw(seed=1):
    torch.manual_seed(seed)
    return [torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in LENGTHS]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", KINDS)
def test_values_and_gradients_are_those_of_the_definition(name, norm, training):
    layer = make(name, NORMS[norm], num_layers=2, bidirectional=True)
    if not training:
        # statistics that are near neither 0 nor 1
        run(layer, draw(2))
        layer.eval()
    sequences = draw()
    want = definition.network(layer, NORMS[norm], sequences)
    wanted = gradients(layer, sequences, None, want.outputs, want.states)
    outputs, states = run(layer, sequences)
    assert_all_close(outputs, want.outputs)
    assert_all_close(states, want.states)
    assert_all_close(gradients(layer, sequences, None, outputs, states), wanted, 1e-7)


@pytest.mark.parametrize("name", KINDS)
def test_both_derivatives_are_those_of_finite_differences(name):
    layer = make(name, NORMS["layer"])
    names = [n for n, _ in layer.named_parameters()]

    def function(x, *parameters):
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, given, (x,), {"lengths": [2, 1]})[0]

    inputs = [torch.randn(2, 2, 3, dtype=torch.float64), *(p.detach() for p in layer.parameters())]
    inputs = [p.requires_grad_() for p in inputs]
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("name", KINDS)
def test_chunks_of_evaluation_are_one_call(name):
    layer = make(name, NORMS["batch"], learn_initial_state=True)
    x = torch.randn(5, 4, 3, dtype=torch.float64)
    layer(x)
    layer.eval()
    whole, state = layer(x)
    first, h = layer(x[:2])
    rest, h = layer(x[2:], h, step=2)
    torch.testing.assert_close(torch.cat([first, rest]), whole)
    torch.testing.assert_close(h, state)


@pytest.mark.parametrize("name", KINDS)
def test_a_layer_is_kept_in_every_way(name):
    layer = make(name, NORMS["batch"], num_layers=2)
    x = torch.randn(5, 8, 3, dtype=torch.float64)
    layer(x)
    layer.eval()
    output, _ = layer(x)
    other = make(name, NORMS["batch"], num_layers=2).eval()
    other.load_state_dict(layer.state_dict())
    copies = [other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), rnnorm.freeze(layer)]
    for kept in copies:
        torch.testing.assert_close(kept(x)[0], output)
    torch.testing.assert_close(layer(x.transpose(0, 1)[0])[0], output[:, 0])
    with pytest.raises(ValueError, match=r"torch\.nn has no"):
        rnnorm.fold(layer)
    rnnorm.update_bn([x, x + 1], layer)
    assert not torch.allclose(layer(x)[0], output)


@pytest.mark.parametrize("name", ["LiGRU", "IndRNN", "MIRNN", "LSTM-full"])
def test_a_layer_is_exported(name):
    layer = make(name, NORMS["layer"]).eval()
    x = torch.randn(5, 4, 3, dtype=torch.float64)
    exported = torch.export.export(layer, (x,), strict=False)
    torch.testing.assert_close(exported.module()(x), layer(x))


@pytest.mark.parametrize("name", KINDS)
def test_a_fused_kernel_refuses_what_it_does_not_list(name):
    layer = make(name, NORMS["layer"])
    x = torch.randn(5, 8, 3, dtype=torch.float64)
    with rnnorm.use_backend("reference"):
        want, _ = layer(x)
    before = dispatch.calls.copy()
    torch.testing.assert_close(layer(x)[0], want)
    assert sum((dispatch.calls - before).values()) == 1
    with rnnorm.use_backend("aten"), pytest.raises(RuntimeError, match=r"torch\.nn has no"):
        layer(x)


@pytest.mark.parametrize("name", KINDS)
def test_autocast_narrows_the_products(name):
    layer = make(name, NORMS["layer"]).float()
    x = torch.randn(5, 4, 3)
    want, _ = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = layer(x)
    assert not torch.equal(output.float(), want)
    torch.testing.assert_close(output.float(), want, atol=0.05, rtol=0)
    output.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters())


def test_a_ligru_has_the_gate_before_the_candidate():
    ligru = make("LiGRU")
    assert ligru.weight_hh_l0.shape == (8, 4)
    with torch.no_grad():
        ligru.bias_ih_l0[:4] = 1e3
    h_0 = torch.randn(1, 2, 4, dtype=torch.float64)
    output, _ = ligru(torch.randn(5, 2, 3, dtype=torch.float64), h_0)
    torch.testing.assert_close(output, h_0.expand(5, 2, 4))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_an_indrnn_begins_with_weights_between_0_and_1(bidirectional):
    indrnn = rnnorm.IndRNN(3, 400, num_layers=2, bidirectional=bidirectional)
    for _ in range(2):
        drawn = [p for n, p in indrnn.named_parameters() if n.startswith("weight_hh")]
        assert all(p.shape == (400,) and 0 <= p.min() < 0.1 and 0.9 < p.max() < 1 for p in drawn)
        others = [p for n, p in indrnn.named_parameters() if not n.startswith("weight_hh")]
        assert all(0 < p.abs().max() <= 0.05 for p in others)
        torch.nn.init.zeros_(indrnn.weight_hh_l1)
        indrnn.reset_parameters()


def test_an_mirnn_begins_with_ones_and_adds_its_bias_outside():
    mirnn = make("MIRNN")
    mirnn.reset_parameters()
    assert all((mirnn.get_parameter(f"{n}_l0") == 1).all() for n in ("alpha", "beta_1", "beta_2"))
    with torch.no_grad():
        for name in ("beta_1", "beta_2"):
            mirnn.get_parameter(f"{name}_l0").zero_()
    output, _ = mirnn(torch.randn(2, 4, 3, dtype=torch.float64))
    # from h_0 = 0 no term but the bias is left
    bias = (mirnn.bias_ih_l0 + mirnn.bias_hh_l0).detach()
    torch.testing.assert_close(output[0], torch.tanh(bias).expand(4, 4))


def test_diagonal_peepholes_are_those_of_vectors():
    full, vector = make("LSTM-full", NORMS["batch"], num_layers=2), None
    vector = rnnorm.LSTM(3, 4, 2, norm=NORMS["batch"], peephole="all", dtype=torch.float64)
    state = full.state_dict()
    for name in state:
        if name.startswith("weight_c"):
            assert state[name].shape == (4, 4)
            diagonal = state[name].diagonal().clone()
            state[name].zero_().diagonal().copy_(diagonal)
            state = {**state, name: diagonal}
    vector.load_state_dict(state)
    vector.initial_noise = 0.0
    x = torch.randn(5, 4, 3, dtype=torch.float64)
    torch.testing.assert_close(full(x)[0], vector(x)[0])


@pytest.mark.parametrize("cls", [rnnorm.LiGRU, rnnorm.IndRNN])
@pytest.mark.parametrize("given", ["sigmoid", None, []])
def test_another_nonlinearity_is_an_error(cls, given):
    with pytest.raises(ValueError, match="nonlinearity must be 'tanh' or 'relu', got"):
        cls(3, 4, nonlinearity=given)


def test_a_layer_is_shown_with_its_option():
    assert repr(make("LiGRU", num_layers=2)) == (
        "LiGRU(LiGRU(nonlinearity='relu'), 3, 4, num_layers=2)"
    )
    assert "peephole='full'" in repr(make("LSTM-full"))


@pytest.mark.parametrize("name", ["LiGRU", "GRU-both"])
def test_candidates_are_dropped(name):
    """With z = 0 the new state is the masked candidate."""
    layer = make(name, recurrent_dropout=rnnorm.CellDropout(p=0.5))
    size, start = 4, 0 if name == "LiGRU" else 4
    with torch.no_grad():
        layer.bias_ih_l0[start : start + size] = -1e3
        layer.bias_ih_l0[-size:] = 1.0
    output, _ = layer(torch.randn(1, 500, 3, dtype=torch.float64))
    assert 0.4 < (output == 0).double().mean() < 0.65
