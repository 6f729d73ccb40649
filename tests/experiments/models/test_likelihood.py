import math

import pytest
import torch

from rnnorm.experiments.models.measures import Likelihood


@pytest.mark.parametrize(
    ("unit", "expected"), [("nats", 1.75), ("bits", 1.75 / math.log(2)), ("perplexity", 5.7546)]
)
def test_minibatches_count_by_their_symbols(unit, expected):
    metric = Likelihood(unit)
    metric.update(torch.tensor(1.0), 10)
    metric.update(torch.tensor(2.0), 30)
    assert float(metric.compute()) == pytest.approx(expected, rel=1e-5)
    metric.reset()
    metric.update(torch.tensor(3.0), 1)
    assert metric.compute() == Likelihood(unit)(torch.tensor(3.0), 5)


def test_many_small_minibatches_lose_no_precision():
    metric = Likelihood("nats")
    for _ in range(20000):
        metric.update(torch.tensor(1.1), 50)
    assert float(metric.compute()) == pytest.approx(1.1, rel=1e-6)


def test_unknown_unit():
    with pytest.raises(ValueError, match="'bits' or 'perplexity', got 'bytes'"):
        Likelihood("bytes")
