import pytest
import torch

from rnnorm.experiments.training.schedule import DecayAfter


def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


def test_the_rate_is_divided_in_every_epoch_after_the_first_ones():
    sgd = optimizer()
    schedule, rates = DecayAfter(sgd, 3, 2.0), []
    for _ in range(6):
        rates.append(sgd.param_groups[0]["lr"])
        sgd.step()
        schedule.step()
    assert rates == [1, 1, 1, 0.5, 0.25, 0.125]


@pytest.mark.parametrize("arguments", [(0, 2.0), (1, 0.0)])
def test_refuses_what_is_not_positive(arguments):
    with pytest.raises(ValueError, match="must be positive"):
        DecayAfter(optimizer(), *arguments)
