import math

import pytest
import torch
from torch import nn

import rnnorm
from rnnorm.diagnostics import plot_spectral_norms, spectral_norms


def test_every_gate_has_the_bound_of_its_nonlinearity():
    bounds = {"LSTM": [4, 4, 1, 4], "GRU": [4, 4, 1], "RNN": [1]}
    for name, expected in bounds.items():
        for layer in (getattr(nn, name)(3, 5), getattr(rnnorm, f"{name}Cell")(3, 5)):
            assert [norm.bound for norm in spectral_norms(layer).values()] == expected


def test_orthogonal_weights_have_norm_one():
    model = nn.ModuleDict({"rnn": rnnorm.init.orthogonal_(rnnorm.LSTM(3, 5, bidirectional=True))})
    norms = spectral_norms(model)
    forward, backward = "rnn.weight_hh_l0 ", "rnn.weight_hh_l0_reverse "
    assert list(norms) == [d + g for d in (forward, backward) for g in "ifgo"]
    for weight, in_evaluation, _ in norms.values():
        assert weight == in_evaluation == pytest.approx(1.0)


@pytest.mark.parametrize("norm", ["batch", "joint", rnnorm.BatchNorm(population="shared")])
def test_norm_in_evaluation_is_that_of_the_jacobian_behind_tanh(norm):
    rnn = rnnorm.RNN(3, 5, norm=norm, dtype=torch.float64)
    rnn(torch.randn(6, 8, 3, dtype=torch.float64))
    rnn.eval()
    x = torch.randn(1, 1, 3, dtype=torch.float64)

    def step(h):
        return torch.atanh(rnn(x, h.view(1, 1, 5), step=5)[0].flatten())

    jacobian = torch.autograd.functional.jacobian(step, x.new_zeros(5))
    (measured,) = spectral_norms(rnn).values()
    assert measured.in_evaluation == pytest.approx(float(torch.linalg.matrix_norm(jacobian, 2)))
    assert measured.weight != pytest.approx(measured.in_evaluation)


def test_layer_norm_has_no_fixed_scale():
    (measured,) = spectral_norms(rnnorm.RNN(3, 5, norm="layer")).values()
    assert math.isnan(measured.in_evaluation)


@pytest.mark.parametrize(
    "norm",
    ["rms", {"input": "batch", "recurrent": "rms"}, {"joint": "layer", "cell": "batch"}],
    ids=str,
)
def test_no_norm_of_rows_has_a_fixed_scale(norm):
    found = spectral_norms(rnnorm.LSTM(3, 4, norm=norm))
    assert all(math.isnan(each.in_evaluation) for each in found.values())


def test_a_mixed_norm_has_the_scale_of_its_recurrent_site():
    spec = rnnorm.BatchNorm(gamma=0.5, eps=0.25)
    mixed = rnnorm.LSTM(3, 4, norm={"input": "layer", "recurrent": spec})
    plain = rnnorm.LSTM(3, 4, norm=rnnorm.BatchNorm(input=None, cell=None, gamma=0.5, eps=0.25))
    mixed.load_state_dict(plain.state_dict(), strict=False)
    assert spectral_norms(mixed) == spectral_norms(plain)


def test_layer_norm_of_the_input_alone_leaves_the_recurrence_its_scale():
    rnn = rnnorm.RNN(3, 5, norm=rnnorm.LayerNorm(recurrent=False))
    (measured,) = spectral_norms(rnn).values()
    assert measured.in_evaluation == measured.weight


def test_projection_is_part_of_the_recurrence():
    lstm = rnnorm.LSTM(3, 5, proj_size=2)
    product = (lstm.weight_hh_l0 @ lstm.weight_hr_l0)[:5].detach()
    measured = spectral_norms(lstm)["weight_hh_l0 i"].weight
    assert measured == pytest.approx(float(torch.linalg.matrix_norm(product, 2)))


def test_a_model_without_recurrence_is_refused():
    for model in (nn.Linear(2, 2), rnnorm.ClockworkRNN(3, 4), rnnorm.HMLSTM(3, 4)):
        with pytest.raises(ValueError, match="no RNN, LSTM or GRU"):
            spectral_norms(model)


@pytest.mark.parametrize("norm", ["batch", "joint"])
def test_a_gru_that_resets_before_the_product_has_two_sites_for_its_gates(norm):
    gru = rnnorm.GRU(3, 5, norm=norm, reset_after=False)
    gru(torch.randn(6, 8, 3))
    gru.eval()
    kind = "joint" if norm == "joint" else "recurrent"
    population = gru.get_submodule(f"population_{kind}_candidate_l0")
    scale = gru.get_parameter(f"gamma_{kind}_candidate_l0") / (population.var[5] + 1e-5).sqrt()
    map_ = scale.unsqueeze(1) * gru.weight_hh_l0[10:]
    measured = spectral_norms(gru)["weight_hh_l0 n"].in_evaluation
    assert measured == pytest.approx(float(torch.linalg.matrix_norm(map_.detach(), 2)), rel=1e-5)


def test_picture_has_two_bars_and_a_bound_for_each_gate(axes):
    plot_spectral_norms(axes, spectral_norms(rnnorm.LSTM(3, 5, norm="batch")))
    assert len(axes.patches) == 8
    assert [t.get_text() for t in axes.get_xticklabels()] == ["l0 i", "l0 f", "l0 g", "l0 o"]
