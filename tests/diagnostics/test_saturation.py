import pytest
import torch
from torch import nn

import rnnorm
from rnnorm.diagnostics import plot_tanh_derivative, tanh_derivative, tanh_inputs


def test_derivative_without_spread_is_one():
    assert [float(v) for v in tanh_derivative(torch.tensor(0.0))] == [1.0, 1.0, 1.0]


def test_derivative_is_that_of_gaussian_samples():
    torch.manual_seed(0)
    spread = torch.tensor([0.1, 0.5, 1.0, 3.0], dtype=torch.float64)
    samples = 1 - torch.tanh(spread * torch.randn(200_000, 4, dtype=torch.float64)) ** 2
    mean, low, high = tanh_derivative(spread)
    torch.testing.assert_close(mean, samples.mean(0), atol=5e-3, rtol=0)
    for quartile, share in ((low, 0.25), (high, 0.75)):
        torch.testing.assert_close(quartile, samples.quantile(share, 0), atol=5e-3, rtol=0)


def test_tanh_network_passes_what_its_outputs_say():
    rnn, x = rnnorm.RNN(3, 8), torch.randn(5, 4, 3)
    output, _ = rnn(x)
    spread, derivative = tanh_inputs(rnn, x)
    torch.testing.assert_close(derivative, (1 - output**2).mean((1, 2)))
    torch.testing.assert_close(spread, torch.atanh(output).std((1, 2), correction=0))


def test_lstm_calls_tanh_twice_a_step_and_its_output_is_spread_by_gamma():
    lstm, x = (
        rnnorm.LSTM(3, 8, norm=rnnorm.BatchNorm(gamma=0.3), initial_noise=0.0),
        torch.randn(5, 40, 3),
    )
    spread, _ = tanh_inputs(lstm, x)
    assert spread.shape == (10,)
    # BN(c) has mean 0 and standard deviation gamma
    torch.testing.assert_close(spread[3::2], torch.full((4,), 0.3), atol=5e-3, rtol=0)
    assert not lstm.population_cell_l0.num_batches_tracked.any()


def test_layers_of_torch_hide_their_tanh():
    with pytest.raises(ValueError, match="never calls tanh"):
        tanh_inputs(nn.LSTM(3, 8), torch.randn(5, 4, 3))


def test_picture_has_the_curve_and_a_model_beside_it(axes):
    plot_tanh_derivative(axes, {"mine": (torch.tensor([2.5]), torch.tensor([0.3]))})
    curve, mine = axes.lines
    assert curve.get_xdata()[-1] == 2.5
    assert mine.get_label() == "mine"
    assert axes.get_xlabel() == "standard deviation of x"


def test_a_stateful_layer_begins_anew():
    stream, x = rnnorm.Stateful(rnnorm.RNN(3, 8)), torch.randn(5, 4, 3)
    wanted = tanh_inputs(stream, x)
    stream(x[:, :2])
    torch.testing.assert_close(tanh_inputs(stream, x), wanted)


def test_whole_numbers_have_the_derivatives_of_fractions():
    whole, fractions = (tanh_derivative(torch.tensor([0, 1, 2], dtype=d)) for d in (None, float))
    for found, expected in zip(whole, fractions, strict=True):
        torch.testing.assert_close(found, expected.float())


def test_measuring_changes_no_random_number():
    model = rnnorm.LSTM(3, 4, num_layers=2, dropout=0.5, norm="batch")
    before = torch.get_rng_state()
    tanh_inputs(model, torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), before)
