"""How well a language model predicts: nats, bits or perplexity, over all symbols of a text."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

Unit = Literal["nats", "bits", "perplexity"]


class Likelihood(Metric):
    """Mean negative log-likelihood of a symbol, in a unit of choice.

    Args:
        unit: ``"nats"``; ``"bits"`` (per character, BPC); or ``"perplexity"``, exp of the nats.
        **kwargs: those of :class:`torchmetrics.Metric`.

    Raises:
        ValueError: there is no such unit.
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    sums: list[Tensor]
    counts: list[Tensor]

    def __init__(self, unit: Unit = "nats", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if unit not in ("nats", "bits", "perplexity"):
            raise ValueError(f"unit must be 'nats', 'bits' or 'perplexity', got {unit!r}")
        self.unit = unit
        # one number a minibatch, added up in float64 at the end: some devices have no float64
        self.add_state("sums", default=[], dist_reduce_fx="cat")
        self.add_state("counts", default=[], dist_reduce_fx="cat")

    def update(self, loss: Tensor, symbols: int) -> None:
        """Count a minibatch.

        Args:
            loss: mean negative log-likelihood of its symbols in nats, a scalar.
            symbols: how many they are.
        """
        self.sums.append(loss.detach().reshape(1) * symbols)
        self.counts.append(torch.tensor([symbols], device=loss.device))

    def compute(self) -> Tensor:
        """The value over all minibatches so far."""
        sums, counts = (dim_zero_cat(part).cpu().double() for part in (self.sums, self.counts))
        nats = float(sums.sum() / counts.sum())
        if self.unit == "bits":
            nats /= math.log(2)
        value = torch.tensor(nats, dtype=torch.float64)
        return (value.exp() if self.unit == "perplexity" else value).float()
