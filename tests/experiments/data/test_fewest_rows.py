import pytest
import torch

from rnnorm.experiments.data.batches import Batches, SimilarLengths, WholeMinibatches
from rnnorm.experiments.data.loaded_data import LoadedData
from rnnorm.experiments.data.text.corpora import Text
from rnnorm.experiments.data.text.windows import CarriedWindows, IndependentWindows


def batches(rows):
    return Batches(torch.zeros(rows, 1, 1), torch.arange(rows), 5, seed=1)


def text(rows):
    return Text(torch.arange(3 * rows + 1, dtype=torch.int32), "some/file")


class Whole(WholeMinibatches):
    def batch(self, number, drawn):
        return None, torch.tensor(drawn[number])


class Similar(SimilarLengths):
    def batch(self, number, drawn):
        return None, torch.from_numpy(drawn[number])


LOADERS = {
    "minibatches": batches,
    "whole minibatches": lambda n: Whole(n, 5, seed=1),
    "in order": lambda n: Whole(n, 5),
    "similar lengths": lambda n: Similar(range(n), 5, seed=1),
    "independent windows": lambda n: IndependentWindows(text(n), 3, 5, seed=1),
    "carried windows": lambda n: CarriedWindows(text(n), 3, 5),
}


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("n", [5, 6, 7, 19, 21, 23])
def test_the_rows_of_the_smallest_minibatch_are_known_beforehand(kind, n):
    loader = LOADERS[kind](n)
    rows = [batch[1].size(-1) for batch in loader]
    assert loader.fewest_rows() == min(rows)


def test_fewer_rows_than_processes_are_refused():
    data = LoadedData()
    data.loaders = {"train": batches(23)}
    data.check_processes(3)
    with pytest.raises(ValueError, match="a row for each of 4 processes, one has 3: take another"):
        data.check_processes(4)
