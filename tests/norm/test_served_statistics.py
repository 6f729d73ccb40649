"""What a population serves in evaluation: for any step, and before any statistic."""

import copy
import warnings

import pytest
import torch
from torch import tensor

import rnnorm
from populations import feed, layer
from rnnorm import BatchNorm


def forget(module):
    module.reset_running_stats()


def load_none(module):
    module.load_state_dict(rnnorm.LSTM(2, 3, norm="batch").state_dict())


@pytest.mark.parametrize("lose", [forget, load_none])
def test_statistics_lost_after_an_evaluation_are_warned_of(lose):
    module, x = rnnorm.LSTM(2, 3, norm="batch"), torch.randn(3, 4, 2)
    module(x)
    module.eval()(x)
    lose(module)
    with pytest.warns(UserWarning, match="before any statistic"):
        module(x)


def test_evaluation_uses_the_unbiased_variance():
    module = layer(gamma=1.0, eps=1e-12)
    with torch.no_grad():
        module.weight_hh_l0.zero_()
    feed(module, [1.0], [2.0], [6.0])
    output, _ = module.eval()(tensor([[[4.0]]]))
    assert output.item() == pytest.approx(torch.tanh(tensor(1 / 7**0.5)).item())


@pytest.mark.parametrize("cls", [rnnorm.RNN, rnnorm.LSTM, rnnorm.GRU])
def test_evaluation_before_any_statistic_is_that_of_mean_0_and_variance_1(cls):
    torch.manual_seed(0)
    module = cls(2, 3, norm=BatchNorm()).eval()
    x = torch.randn(4, 2, 2)
    with pytest.warns(UserWarning, match=r"(?i)statistic"):
        got, _ = module(x)
    other = cls(2, 3, norm=BatchNorm(horizon=1)).eval()
    state = {name: p for name, p in module.state_dict().items() if "population" not in name}
    other.load_state_dict(state, strict=False)
    with torch.no_grad():
        for population in other.children():
            population.mean.zero_()
            population.var.fill_(1.0)
            population.rows.fill_(5)
            population.num_batches_tracked.fill_(1)
    torch.testing.assert_close(got, other(x)[0])


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.filterwarnings("ignore:evaluation before any statistic")
def test_an_average_of_models_without_their_counts_serves_each_step_by_its_own(frozen):
    torch.manual_seed(0)
    module = rnnorm.LSTM(2, 3, norm=BatchNorm(horizon=6))
    x = torch.randn(6, 5, 2)
    module(x)
    average = copy.deepcopy(module)
    for name, buffer in average.named_buffers():
        if name.endswith(("rows", "num_batches_tracked")):
            buffer.zero_()
    average = rnnorm.freeze(average) if frozen else average.eval()
    torch.testing.assert_close(average(x)[0], module.eval()(x)[0])


def test_evaluation_before_any_statistic_warns_once():
    module = rnnorm.LSTM(2, 3, norm="batch").eval()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module(torch.zeros(4, 2, 2))
        module(torch.zeros(4, 2, 2))
    assert len(caught) == 1


def test_evaluation_after_one_minibatch_does_not_warn():
    torch.manual_seed(0)
    module = rnnorm.LSTM(2, 3, norm="batch")
    module(torch.randn(4, 5, 2))
    module.eval()(torch.randn(6, 1, 2))


def test_steps_before_the_first_estimate_are_served_by_it():
    layer = rnnorm.RNN(2, 3, norm="batch").double()
    layer(torch.randn(2, 6, 2).double(), step=3)
    population = layer.population_recurrent_l0
    mean, var = population.at(torch.arange(8))
    assert torch.equal(mean[:4], population.mean[3].expand(4, -1))
    assert torch.equal(var[4:], population.var[4].expand(4, -1))


@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("first", [0, 2, 3, 5, 9])
@pytest.mark.parametrize("start", [0, 3])
def test_consecutive_steps_are_served_as_each_alone(start, first, gradient):
    layer = rnnorm.RNN(2, 3, norm="batch").double()
    layer(torch.randn(4, 6, 2).double(), step=start)
    population = layer.population_recurrent_l0
    with torch.set_grad_enabled(gradient):
        mean, var = population.consecutive(first, 2)
    assert len(mean) == len(var) == (2 if first < start + 3 else 1)
    for k in range(2):
        served = population.at(torch.tensor(first + k))
        assert torch.equal(mean[min(k, len(mean) - 1), 0], served[0])
        assert torch.equal(var[min(k, len(var) - 1), 0], served[1])


@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("first", [0, 3, 9, torch.tensor([9, 1, 2]), torch.tensor([7, 8])], ids=str)
@pytest.mark.parametrize("horizon", [None, 7])
def test_a_long_sequence_asks_for_no_more_rows_than_have_an_estimate(
    horizon, first, frozen, gradient
):
    layer = rnnorm.RNN(2, 3, norm=BatchNorm(horizon=horizon))
    layer(torch.randn(4, 6, 2))
    layer = rnnorm.freeze(layer) if frozen else layer.eval()
    population = layer.population_recurrent_l0
    with torch.set_grad_enabled(gradient):
        mean, var = population.consecutive(first, 1000)
    earliest = int(torch.as_tensor(first).min())
    assert len(mean) == len(var) == max(1, 4 - earliest)
    steps = torch.arange(len(mean) + 5).unsqueeze(1) + first
    for got, want in zip((mean, var), population.at(steps), strict=True):
        assert torch.equal(got[torch.arange(len(want)).clamp(max=len(got) - 1)], want)


def test_in_evaluation_without_gradient_rows_in_a_row_are_no_copy():
    layer = rnnorm.RNN(2, 3, norm="batch")
    layer(torch.randn(4, 6, 2))
    population = layer.eval().population_recurrent_l0
    with torch.no_grad():
        mean, _ = population.consecutive(1, 1000)
    assert mean.data_ptr() == population.mean[1].data_ptr()


@pytest.mark.parametrize("norm", ["batch", BatchNorm(population="shared"), "bn-e*"])
def test_evaluation_is_differentiated_though_statistics_change_before_backward(norm):
    layer = rnnorm.LSTM(2, 3, norm=norm)
    x = torch.randn(4, 6, 2)
    layer(x)
    output = layer.eval()(x)[0]
    expected = torch.autograd.grad(output.sum(), layer.weight_hh_l0, retain_graph=True)[0]
    layer.train()(2 * x)
    assert torch.equal(torch.autograd.grad(output.sum(), layer.weight_hh_l0)[0], expected)


def test_a_count_that_is_zeroed_in_place_no_longer_serves():
    layer = rnnorm.RNN(2, 3, norm="batch")
    layer(torch.randn(3, 6, 2))
    population = layer.eval().population_input_l0
    with torch.no_grad():
        assert torch.equal(population.consecutive(1, 1)[0][0, 0], population.mean[1])
        population.num_batches_tracked.data[1] = 0
        assert torch.equal(population.consecutive(1, 1)[0][0, 0], population.mean[0])
