import pytest
import torch

import rnnorm
from rnnorm.experiments.measuring.batch_statistics import SeveralRows


@pytest.mark.parametrize(
    ("norm", "kept"),
    [
        (None, [3, 2, 5]),
        (rnnorm.LayerNorm(), [3, 2, 5]),
        (rnnorm.BatchNorm(), [3, 2, 5]),
        (rnnorm.BatchNorm(min_rows=4), [5]),
    ],
)
def test_minibatches_of_too_few_rows_are_left_out(norm, kept):
    model = torch.nn.Sequential(rnnorm.LSTM(2, 3, norm=norm))
    loader = [(torch.zeros(4, rows), torch.zeros(4, rows)) for rows in (3, 1, 2, 5)]
    assert [x.shape[1] for x, _ in SeveralRows(loader, model)] == kept
