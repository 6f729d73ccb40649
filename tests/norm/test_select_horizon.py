"""``select_horizon`` finds how many steps of the population serve best."""

import numpy as np
import pytest
import torch

import definition
import rnnorm
from populations import trained
from rnnorm import BatchNorm


def rows_of(module):
    return [len(population.rows) for population in module.children()]


def test_select_horizon_sets_and_returns_the_best():
    module = trained()
    tried = []

    def evaluate(model):
        assert model is module
        tried.append(max(rows_of(model)))
        return abs(tried[-1] - 2.0)

    assert rnnorm.select_horizon(module, evaluate) == 2
    assert sorted(tried) == [1, 2, 4, 5]
    assert rows_of(module) == [2, 2, 2]
    x = torch.randn(5, 1, 2)
    module.eval()
    want = definition.network(module, BatchNorm(), [x[:, 0]]).outputs[0]
    torch.testing.assert_close(module(x)[0][:, 0], want)


@pytest.mark.parametrize("horizons", [[3, 1], np.array([3, 1])])
def test_select_horizon_tries_the_horizons_it_is_given(horizons):
    module = trained()
    tried = []

    def evaluate(model):
        tried.append(rows_of(model))
        return -float(tried[-1][0])

    assert rnnorm.select_horizon(module, evaluate, horizons=horizons) == 3
    assert sorted(tried) == [[1, 1, 1], [3, 3, 3]]
    assert rows_of(module) == [3, 3, 3]


@pytest.mark.parametrize("bad", [2, 3, 6])
def test_select_horizon_finds_where_the_statistics_go_bad(bad):
    torch.manual_seed(0)
    module = rnnorm.LSTM(2, 3, norm=BatchNorm(gamma=1.0, input=None), initial_noise=0.0)
    x = torch.randn(8, 64, 2)
    want = module(x)[0].detach()
    with torch.no_grad():
        for population in module.children():
            population.mean[bad:] += 9.0  # a tail that few sequences reached

    def loss(model):
        with torch.no_grad():
            return (model(x)[0] - want).square().mean().item()

    assert rnnorm.select_horizon(module, loss, horizons=range(1, 9)) == bad
    assert module.training
    assert rows_of(module) == [bad] * 2


def test_select_horizon_passes_over_a_loss_that_is_no_number():
    losses = {1: float("nan"), 2: 3.0, 4: float("inf"), 5: float("nan")}
    module = trained()
    assert rnnorm.select_horizon(module, lambda model: losses[rows_of(model)[0]]) == 2
    assert rows_of(module) == [2, 2, 2]


def test_select_horizon_loses_nothing_when_the_evaluation_fails():
    module = trained()
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}

    def evaluate(model):
        raise KeyError("no such data")

    with pytest.raises(KeyError):
        rnnorm.select_horizon(module, evaluate)
    assert module.training
    for name, buffer in module.named_buffers():
        assert torch.equal(buffer, before[name]), name


@pytest.mark.parametrize("horizons", [[], [0], [-1, 2]])
def test_select_horizon_needs_horizons_of_at_least_one(horizons):
    with pytest.raises(ValueError, match="horizon"):
        rnnorm.select_horizon(trained(), lambda _: 0.0, horizons=horizons)


@pytest.mark.parametrize("horizons", [3, [True], [1.5], ["2"]])
def test_select_horizon_needs_ints(horizons):
    with pytest.raises(TypeError, match="horizons must be ints, got"):
        rnnorm.select_horizon(trained(), lambda _: 0.0, horizons=horizons)


def test_select_horizon_needs_a_number():
    with pytest.raises(TypeError, match="evaluate must return a number, got None"):
        rnnorm.select_horizon(trained(), lambda _: None)


def test_select_horizon_needs_statistics():
    for norm in (None, "layer", BatchNorm(population="shared")):
        with pytest.raises(ValueError, match=r"(?i)statistic|population|norm"):
            rnnorm.select_horizon(rnnorm.LSTM(2, 3, norm=norm), lambda _: 0.0)


def test_select_horizon_begins_a_stateful_layer_anew_each_time():
    stream, x, ages = rnnorm.Stateful(trained().eval()), torch.randn(3, 2, 2), []
    stream(x)

    def evaluate(model):
        ages.append(model.age)
        model(x)
        return 0.0

    rnnorm.select_horizon(stream, evaluate)
    assert ages == [0, 0, 0, 0]
    assert stream.age == 3


def test_a_horizon_beyond_the_longest_population_is_its_length():
    module = trained()
    assert rnnorm.select_horizon(module, lambda model: 0.0, [50]) == 5
    assert rows_of(module) == [5, 5, 5]
