from math import isnan

import pytest
import torch

from rnnorm.experiments.models.measures import SamplingError


def error_of(sums, terms, rows=None):
    error = SamplingError()
    for part in zip(sums.split(rows or len(sums)), terms.split(rows or len(terms)), strict=True):
        error.update(*part)
    return float(error.compute())


def recordings(count, generator):
    """Recordings of 10 to 49 frames, each with a share of wrong ones of its own."""
    frames = torch.randint(10, 50, (count,), generator=generator)
    share = torch.rand(count, generator=generator) ** 2
    return torch.binomial(frames.float(), share, generator=generator), frames


def test_it_is_how_far_test_sets_are_apart():
    generator = torch.Generator().manual_seed(0)
    drawn = [recordings(60, generator) for _ in range(2000)]
    apart = torch.stack([wrong.sum() / frames.sum() for wrong, frames in drawn]).std()
    mean = sum(error_of(*each) for each in drawn) / len(drawn)
    assert mean == pytest.approx(float(apart), rel=0.05)
    # frames that were right or wrong each by itself would be three times as certain
    wrong, frames = (torch.stack(each).sum() for each in zip(*drawn, strict=True))
    rate = wrong / frames
    assert mean > 2.5 * float((rate * (1 - rate) / (frames / len(drawn))).sqrt())


def test_of_rows_with_one_term_it_is_the_binomial_one():
    right = (torch.arange(200) % 5 > 0).float()
    assert error_of(right, torch.ones(200)) == pytest.approx((0.8 * 0.2 / 199) ** 0.5, rel=1e-6)


@pytest.mark.parametrize("rows", [1, 7])
def test_minibatches_make_no_difference(rows):
    wrong, frames = recordings(50, torch.Generator().manual_seed(1))
    assert error_of(wrong, frames, rows) == pytest.approx(error_of(wrong, frames), rel=1e-9)


def test_one_row_has_none():
    assert isnan(error_of(torch.tensor([3.0]), torch.tensor([5])))
