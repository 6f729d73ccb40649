import pytest
import torch

from rnnorm.experiments.training.optimizer import FlooredRMSprop


def test_steps_divide_by_the_root_mean_square_or_the_floor():
    weight = torch.nn.Parameter(torch.tensor([1.0, 1.0], dtype=torch.float64))
    optimizer = FlooredRMSprop([weight], lr=0.1, alpha=0.5, floor=1e-2)
    large, small = 2.0, 1e-4
    square, expected = 0.0, torch.ones(2, dtype=torch.float64)
    for _ in range(3):
        weight.grad = torch.tensor([large, small], dtype=torch.float64)
        optimizer.step()
        square = 0.5 * square + 0.5 * large**2
        # the mean square of the small entry stays below the floor
        expected -= 0.1 * torch.tensor([large / square**0.5, small / 1e-2], dtype=torch.float64)
    torch.testing.assert_close(weight.detach(), expected)


def test_above_the_floor_it_is_torchs_without_eps():
    mine, torchs = (torch.nn.Parameter(torch.linspace(-1, 1, 7)) for _ in range(2))
    optimizers = (
        FlooredRMSprop([mine], lr=0.01),
        torch.optim.RMSprop([torchs], lr=0.01, alpha=0.9, eps=1e-12),
    )
    for optimizer, weight in zip(optimizers, (mine, torchs), strict=True):
        for _ in range(5):
            optimizer.zero_grad()
            (weight.sin() ** 2).sum().backward()
            optimizer.step()
    torch.testing.assert_close(mine, torchs)


def test_a_parameter_without_a_gradient_stays():
    weight = torch.nn.Parameter(torch.ones(2))
    FlooredRMSprop([weight]).step()
    assert weight.tolist() == [1, 1]


@pytest.mark.parametrize("options", [{"lr": -1.0}, {"alpha": 1.5}, {"floor": 0.0}])
def test_arguments_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=f"^{next(iter(options))} must be"):
        FlooredRMSprop([torch.nn.Parameter(torch.ones(1))], **options)
