import copy

import pytest
import torch
from torch import nn

import rnnorm
from rnnorm.diagnostics import first_input, first_input_influence, plot_first_input_influence

T, B, I, H = 6, 5, 3, 4  # noqa: E741


def by_autograd(layer, x):
    """The same from each entry of the Jacobian of every row, by autograd."""
    layer.eval()
    jacobian = torch.autograd.functional.jacobian(lambda x: layer(x)[0], x)
    rows = [jacobian[:, b, :, 0, b].square().sum((1, 2)) for b in range(x.size(1))]
    return torch.stack(rows).mean(0).sqrt()


@pytest.mark.parametrize("norm", [None, "batch", "layer"])
@pytest.mark.parametrize("kind", [rnnorm.RNN, rnnorm.LSTM, rnnorm.GRU])
def test_it_is_the_norm_of_the_jacobian_of_a_row(kind, norm):
    layer = kind(I, H, num_layers=2, norm=norm, dtype=torch.float64)
    x = torch.randn(T, B, I, dtype=torch.float64)
    layer(x)
    found = first_input_influence(layer, x)
    torch.testing.assert_close(found, by_autograd(layer, x))
    assert (found > 0).all()


def test_torchs_layers_and_batch_first_are_understood():
    layer, x = nn.LSTM(I, H, batch_first=True), torch.randn(B, T, I)
    ours = rnnorm.LSTM(I, H)
    ours.load_state_dict(layer.state_dict())
    expected = first_input_influence(ours, x.transpose(0, 1))
    torch.testing.assert_close(first_input_influence(layer, x), expected)


def test_a_linear_unit_forgets_by_its_recurrent_weight():
    layer = rnnorm.RNN(1, 1, nonlinearity="relu")
    for parameter, value in zip(layer.parameters(), (2.0, 0.5, 0.0, 0.0), strict=True):
        nn.init.constant_(parameter, value)
    found = first_input_influence(layer, torch.ones(4, 2, 1))
    torch.testing.assert_close(found, torch.tensor([2.0, 1.0, 0.5, 0.25]))


def test_nothing_of_the_layer_changes_and_nothing_is_drawn():
    layer, x = rnnorm.LSTM(I, H, norm="batch", initial_noise=0.1), torch.randn(T, B, I)
    layer(x)
    before, random = copy.deepcopy(layer.state_dict()), torch.get_rng_state()
    with torch.inference_mode():
        first = first_input_influence(layer, x)
    assert torch.equal(first_input_influence(layer, x), first)
    assert torch.equal(torch.get_rng_state(), random)
    assert layer.training
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_other_models_and_shapes_are_refused():
    with pytest.raises(ValueError, match="model must be a recurrent layer, got Linear"):
        first_input_influence(nn.Linear(2, 2), torch.zeros(T, B, 2))
    with pytest.raises(ValueError, match=r"x must be .*, got shape \(6, 3\)"):
        first_input_influence(rnnorm.RNN(I, H), torch.zeros(T, I))
    with pytest.raises(ValueError, match="must not be bidirectional"):
        first_input_influence(rnnorm.RNN(I, H, bidirectional=True), torch.zeros(T, B, I))


def test_the_picture_has_a_line_for_each_layer(axes):
    plot_first_input_influence(axes, {"RNN": torch.tensor([1.0, 0.5, 0.0]), "LSTM": torch.ones(3)})
    assert [line.get_label() for line in axes.lines] == ["RNN", "LSTM"]
    assert axes.get_yscale() == "log"


@pytest.mark.parametrize("batch_first", [False, True])
def test_inputs_that_share_a_pass_have_the_influence_of_one_at_a_time(monkeypatch, batch_first):
    layer = rnnorm.LSTM(5, H, norm="layer", batch_first=batch_first, dtype=torch.float64)
    x = torch.randn(T, B, 5, dtype=torch.float64)
    x = x.transpose(0, 1) if batch_first else x
    whole = first_input_influence(layer, x)
    # the last pass has one input
    monkeypatch.setattr(first_input, "_ROWS", 2 * B)
    torch.testing.assert_close(first_input_influence(layer, x), whole)
    monkeypatch.setattr(first_input, "_ROWS", 1)
    torch.testing.assert_close(first_input_influence(layer, x), whole)
