"""How far a score on other test rows of the same kind would be off."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat


class SamplingError(Metric):
    """Standard error of a mean over terms that come in independent rows.

    The terms of a row, the frames of a recording or the words of an utterance, are right or wrong
    together. With a sum of a_i over the b_i terms of row i, n rows and the mean r = Σ a_i / Σ b_i
    it is sqrt(n / (n - 1) Σ (a_i - r b_i)²) / Σ b_i, the error of a ratio (Cochran, Sampling
    Techniques, 1977, chapter 6). Of rows with one term each that is the binomial one,
    sqrt(r (1 - r) / (n - 1)). It is not a number for fewer than two rows.
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
            sums: of each row's terms ``(B,)``.
            terms: how many each row has ``(B,)``.
        """
        self.sums.append(sums)
        self.terms.append(terms)

    def compute(self) -> Tensor:
        """The error of all rows so far."""
        # a device may have no float64
        sums, terms = (dim_zero_cat(each).cpu().double() for each in (self.sums, self.terms))
        apart = sums - sums.sum() / terms.sum() * terms
        rows = len(terms)
        return (rows / torch.tensor(rows - 1.0) * apart.square().sum()).sqrt() / terms.sum()
