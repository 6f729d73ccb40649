import torch

from rnnorm.experiments.data.batches import frame_mask


def test_a_row_is_inside_until_its_length():
    found = frame_mask(torch.tensor([3, 1, 0]), 3)
    assert found.int().tolist() == [[1, 1, 0], [1, 0, 0], [1, 0, 0]]
