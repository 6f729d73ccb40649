import pytest
import torch
from torch import nn

import rnnorm
from rnnorm.diagnostics import plot_statistic, population_statistics


class Model(nn.Module):
    def __init__(self, norm="batch"):
        super().__init__()
        self.rnn = rnnorm.LSTM(3, 4, norm=norm)

    def forward(self, x):
        return self.rnn(x)[0]


def test_statistics_are_those_of_each_site_and_step():
    model = Model()
    model(torch.randn(6, 5, 3))
    statistics = population_statistics(model)
    assert list(statistics) == ["rnn.input_l0", "rnn.recurrent_l0", "rnn.cell_l0"]
    mean, var = statistics["rnn.cell_l0"]
    assert mean.shape == var.shape == (6, 4)
    torch.testing.assert_close(mean, model.rnn.population_cell_l0.mean)
    torch.testing.assert_close(var, model.rnn.population_cell_l0.var)


def test_a_layer_may_have_the_name_of_another_ones_statistics():
    model = nn.ModuleDict({name: rnnorm.RNN(3, 4, norm="batch") for name in ("a", "population_a")})
    for layer in model.values():
        layer(torch.randn(6, 5, 3))
    names = [f"{name}.{site}_l0" for name in model for site in ("input", "recurrent")]
    assert list(population_statistics(model)) == names


def test_steps_after_the_last_statistic_are_left_out():
    model = Model(rnnorm.BatchNorm(horizon=9))
    model(torch.randn(6, 5, 3))
    assert all(len(mean) == 6 for mean, _ in population_statistics(model).values())


def test_a_step_that_a_module_rests_at_has_the_statistic_that_serves_it():
    rnn = rnnorm.ClockworkRNN(3, 8, (1, 8), norm="batch")
    rnn(torch.randn(20, 5, 3))
    mean, _ = population_statistics(rnn)["recurrent_period8_l0"]
    assert len(mean) == 17
    torch.testing.assert_close(mean, mean[[8 * (t // 8) for t in range(17)]])
    assert not mean[7].equal(mean[8])


@pytest.mark.parametrize("norm", [None, "layer", "batch", rnnorm.BatchNorm(population="shared")])
def test_a_model_without_statistics_per_step_is_refused(norm):
    with pytest.raises(ValueError, match="no population statistics per time step"):
        population_statistics(Model(norm))


def test_picture_has_a_line_for_each_unit(axes):
    values = torch.rand(6, 40)
    plot_statistic(axes, values, [3, 7], "population variance")
    drawn = [list(line.get_ydata()) for line in axes.lines]
    assert drawn == [values[:, 3].tolist(), values[:, 7].tolist()]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("time step", "population variance")


def test_picture_chooses_units_itself(axes):
    plot_statistic(axes, torch.rand(6, 40))
    assert len(axes.lines) == 10
    few = torch.rand(6, 3)
    plot_statistic(axes, few, units=5)
    drawn = [list(line.get_ydata()) for line in axes.lines[10:]]
    assert drawn == few.T.tolist()
