"""Losses and scores: cross-entropy, likelihood, and the sampling error of a score."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from rnnorm.experiments.console import check_choice


def cross_entropy(scores: Tensor, targets: Tensor, **options: Any) -> Tensor:
    """Compute :func:`torch.nn.functional.cross_entropy` in single precision or better."""
    wide = torch.promote_types(scores.dtype, torch.float32)
    return functional.cross_entropy(scores.to(wide), targets, **options)


Unit = Literal["nats", "bits", "perplexity"]


class Likelihood(Metric):
    """Mean negative log-likelihood of a symbol, in a unit of choice.

    Args:
        unit: ``"nats"``; ``"bits"`` (per character, BPC); or ``"perplexity"``, exp of the nats.
        **kwargs: arguments of :class:`torchmetrics.Metric`.

    Raises:
        ValueError: if the unit is unknown.
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    sums: list[Tensor]
    counts: list[Tensor]

    def __init__(self, unit: Unit = "nats", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_choice(Unit, unit=unit)
        self.unit = unit
        # kept for each minibatch and summed on the CPU, since some devices have no float64
        self.add_state("sums", default=[], dist_reduce_fx="cat")
        self.add_state("counts", default=[], dist_reduce_fx="cat")

    def update(self, loss: Tensor, symbols: int) -> None:
        """Count a minibatch.

        Args:
            loss: mean negative log-likelihood of its symbols in nats, a scalar.
            symbols: number of symbols.
        """
        self.sums.append(loss.detach().reshape(1) * symbols)
        self.counts.append(torch.tensor([symbols], device=loss.device))

    def compute(self) -> Tensor:
        """Return the value over all minibatches so far."""
        sums, counts = (dim_zero_cat(part).cpu().double() for part in (self.sums, self.counts))
        nats = float(sums.sum() / counts.sum())
        if self.unit == "bits":
            nats /= math.log(2)
        value = torch.tensor(nats, dtype=torch.float64)
        return (value.exp() if self.unit == "perplexity" else value).float()


class SamplingError(Metric):
    """Standard error of a mean over terms that come in independent rows.

    The terms of a row, such as the frames of a recording or the words of an utterance, are
    correlated. With a sum of a_i over the b_i terms of row i, n rows and the mean r = Σ a_i / Σ b_i
    it is sqrt(n / (n - 1) Σ (a_i - r b_i)²) / Σ b_i, the error of a ratio (Cochran, Sampling
    Techniques, 1977, chapter 6). For rows with one term each it is the binomial error,
    sqrt(r (1 - r) / (n - 1)). It is NaN for fewer than two rows.
    """

    full_state_update = False
    sums: list[Tensor]
    terms: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("sums", [], dist_reduce_fx="cat")
        self.add_state("terms", [], dist_reduce_fx="cat")

    def update(self, sums: Tensor, terms: Tensor) -> None:
        """Add rows.

        Args:
            sums: sum of each row's terms ``(B,)``.
            terms: number of each row's terms ``(B,)``.
        """
        self.sums.append(sums)
        self.terms.append(terms)

    def compute(self) -> Tensor:
        """Return the error over all rows so far."""
        # computed on the CPU, since some devices have no float64
        sums, terms = (dim_zero_cat(each).cpu().double() for each in (self.sums, self.terms))
        apart = sums - sums.sum() / terms.sum() * terms
        rows = len(terms)
        return (rows / torch.tensor(rows - 1.0) * apart.square().sum()).sqrt() / terms.sum()
