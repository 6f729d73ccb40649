import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from rnnorm.experiments.models.mixture import Mixture


def mixture(*shape, components=3):
    torch.manual_seed(0)
    return Mixture.of(torch.randn(*shape, 6 * components, dtype=torch.float64))


def as_distribution(made):
    std, rho = made.log_std.exp(), made.correlation
    both = rho * std.prod(-1)
    rows = torch.stack([std[..., 0] ** 2, both, both, std[..., 1] ** 2], -1)
    normal = MultivariateNormal(made.mean, rows.unflatten(-1, (2, 2)))
    return MixtureSameFamily(Categorical(logits=made.logits), normal)


def test_the_density_is_that_of_a_mixture_of_gaussians():
    made, offsets = mixture(5, 4), torch.randn(5, 4, 2, dtype=torch.float64)
    torch.testing.assert_close(made.nats(offsets), -as_distribution(made).log_prob(offsets))


def test_its_gradients_are_right():
    offsets = torch.randn(3, 2, dtype=torch.float64)
    outputs = torch.randn(3, 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: Mixture.of(z).nats(offsets), outputs)


def test_in_a_half_type_a_correlation_is_short_of_1():
    outputs = torch.zeros(1, 6)
    outputs[0, 5] = 4.0
    offsets = torch.tensor([[0.3, 0.3]])
    wide, half = (Mixture.of(z).nats(offsets) for z in (outputs, outputs.bfloat16()))
    torch.testing.assert_close(half, wide)


def test_a_repeated_offset_has_a_bound():
    outputs = torch.zeros(1, 6)
    outputs[:, 3:5] = -1e9
    outputs[:, 5] = 1e9
    assert Mixture.of(outputs).nats(torch.zeros(1, 2)).isfinite().all()


def test_draws_have_the_moments_of_the_mixture():
    made = Mixture(*(part.expand(20_000, *part.shape[1:]) for part in mixture(1)))
    drawn = made.draw(1.0, torch.Generator().manual_seed(1))
    other = as_distribution(mixture(1)).sample((20_000,)).squeeze(1)
    torch.testing.assert_close(drawn.mean(0), other.mean(0), rtol=0.1, atol=0.1)
    torch.testing.assert_close(drawn.T.cov(), other.T.cov(), rtol=0.15, atol=0.15)


# by the second one the logarithms of the weights become infinite
@pytest.mark.parametrize("temperature", [0, 1e-310])
def test_without_temperature_the_heaviest_mean_is_drawn(temperature):
    made = mixture(7)
    drawn = made.draw(temperature, torch.Generator().manual_seed(1))
    heaviest = made.mean[torch.arange(7), made.logits.argmax(1)]
    torch.testing.assert_close(drawn, heaviest, rtol=0, atol=0)
