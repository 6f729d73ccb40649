import torch

from rnnorm.experiments.trained.test import SeveralRows


def test_minibatches_of_one_row_are_left_out():
    loader = [(torch.zeros(4, rows), torch.zeros(4, rows)) for rows in (3, 1, 2, 5)]
    assert [x.shape[1] for x, _ in SeveralRows(loader)] == [3, 2, 5]
