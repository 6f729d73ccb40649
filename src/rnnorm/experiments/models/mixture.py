"""A mixture of bivariate Gaussians for a pen's next offset (Graves 2013, equations 17 to 26)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rnnorm.experiments.models.feeding import draw_at

# least log σ, since the likelihood of one repeated offset has no other bound
_LEAST = -6.0


class Mixture(NamedTuple):
    """M weighted Gaussians for each of any number of points.

    Attributes:
        logits: logits of the weights π ``(..., M)``.
        mean: μ ``(..., M, 2)``.
        log_std: logarithm of σ ``(..., M, 2)``.
        correlation: ρ, between -1 and 1 ``(..., M)``.
    """

    logits: Tensor
    mean: Tensor
    log_std: Tensor
    correlation: Tensor

    @classmethod
    def of(cls, outputs: Tensor) -> Mixture:
        """Make a mixture from a layer's outputs ``(..., 6 M)``."""
        # half precision would round ρ to 1
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        count = outputs.size(-1) // 6
        logits, mean, log_std, rho = torch.split(outputs, [count, 2 * count, 2 * count, count], -1)
        mean, log_std = (part.reshape(*part.shape[:-1], count, 2) for part in (mean, log_std))
        # |ρ| stays below 1, where the density has no bound
        return cls(logits, mean, log_std.clamp(min=_LEAST), 0.999 * rho.tanh())

    def nats(self, offsets: Tensor) -> Tensor:
        """Compute the negative log density ``(...)`` of offsets ``(..., 2)``."""
        z = (offsets.unsqueeze(-2) - self.mean) * (-self.log_std).exp()
        rho, left = self.correlation, 1 - self.correlation.square()
        # equation 25
        distance = z.square().sum(-1) - 2 * rho * z.prod(-1)
        log_density = -distance / (2 * left) - left.log() / 2 - self.log_std.sum(-1)
        whole = (self.logits.log_softmax(-1) + log_density).logsumexp(-1)
        return math.log(2 * math.pi) - whole

    def draw(self, temperature: float, generator: torch.Generator) -> Tensor:
        """Draw offsets ``(B, 2)`` from mixtures for B points.

        Args:
            temperature: divides the logits and multiplies the variances (Ha & Eck 2017); 0 for the
                mean of the heaviest component.
            generator: source of the random numbers.
        """
        chosen = draw_at(self.logits, temperature, generator)
        rows = torch.arange(len(chosen))
        mean, rho = self.mean[rows, chosen], self.correlation[rows, chosen]
        std = self.log_std[rows, chosen].exp() * math.sqrt(temperature)
        u, v = torch.randn(2, len(chosen), generator=generator, dtype=mean.dtype)
        return mean + std * torch.stack([u, rho * u + (1 - rho.square()).sqrt() * v], -1)
