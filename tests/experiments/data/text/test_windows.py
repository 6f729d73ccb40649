from itertools import pairwise

import pytest
import torch

from rnnorm.experiments.data.text.corpora import Text
from rnnorm.experiments.data.text.windows import CarriedWindows, IndependentWindows, Stream
from rnnorm.lightning import ExactStatistics


def text(size):
    return Text(torch.arange(size, dtype=torch.int32), "some/file")


def predicted(loader):
    """All symbols that are predicted, in no order."""
    return sorted(int(symbol) for window in loader for symbol in window.y.flatten())


def test_the_next_symbol_is_predicted():
    for loader in (
        IndependentWindows(text(50), 6, 3, seed=1, crop=True),
        CarriedWindows(text(50), 6, 3),
        Stream(text(50), 7),
    ):
        for window in loader:
            assert window.x.dtype == torch.int64
            assert torch.equal(window.y, window.x + 1)


def test_independent_windows_do_not_overlap():
    loader = IndependentWindows(text(62), 6, 4, seed=1)
    windows = list(loader)
    assert [w.x.shape for w in windows] == [(6, 4), (6, 4), (6, 2)]
    assert len(loader) == 3
    assert all(w.fresh and not w.kept and w.step == 0 for w in windows)
    assert predicted(loader) == list(range(1, 61))


def test_no_training_minibatch_has_a_single_row():
    for windows, kept in ((9, 8), (10, 10), (8, 8), (1, 1)):
        loader = IndependentWindows(text(6 * windows + 1), 6, 4, seed=1)
        assert sum(w.x.size(1) for w in loader) == kept
        assert len(list(loader)) == len(loader)
    assert len(IndependentWindows(text(61), 6, 1, seed=1)) == 10


def test_statistics_are_of_as_many_windows_as_they_want():
    loader = IndependentWindows(text(6 * 9 + 1), 6, 4, seed=1)
    assert [w.x.size(1) for w in ExactStatistics(batch_size=8).minibatches(loader)] == [8]
    assert [w.x.size(1) for w in ExactStatistics(batch_size=7).minibatches(loader)] == [7, 2]
    assert [w.x.size(1) for w in loader] == [4, 4]
    carried = CarriedWindows(text(100), 8, 3)
    with pytest.raises(ValueError, match="a CarriedWindows, has no batch size"):
        ExactStatistics(batch_size=8).minibatches(carried)


def test_order_and_crop_are_functions_of_seed_and_epoch():
    def starts(seed, epoch):
        loader = IndependentWindows(text(1000), 7, 5, seed, crop=True)
        loader.set_epoch(epoch)
        return [int(s) for w in loader for s in w.x[0]]

    assert starts(1, 2) == starts(1, 2)
    assert starts(1, 2) != starts(1, 3) != starts(2, 3)
    offsets = {starts(1, epoch)[0] % 7 for epoch in range(40)}
    assert offsets == set(range(7))


def test_every_crop_has_as_many_windows():
    loader = IndependentWindows(text(100), 7, 5, seed=1, crop=True)
    for epoch in range(20):
        loader.set_epoch(epoch)
        assert len(list(loader)) == len(loader)
        assert sum(w.x.size(1) for w in loader) == 13


def test_evaluation_windows_leave_nothing_out():
    for size in range(8, 40):
        loader = IndependentWindows(text(size), 7, 2)
        assert len(list(loader)) == len(loader)
        assert predicted(loader) == list(range(1, size))


def test_carried_windows_go_on_where_the_one_before_ended():
    windows = list(CarriedWindows(text(100), 8, 3))
    assert len(windows) == 4
    for one, two in pairwise(windows):
        assert torch.equal(two.x[0], one.y[-1])
    assert [w.fresh for w in windows] == [True, False, False, False]
    assert [w.kept for w in windows] == [True, True, True, False]
    assert all(w.step == 0 and w.x.shape == (8, 3) for w in windows)


def test_carried_evaluation_leaves_out_less_than_a_column():
    loader = CarriedWindows(text(101), 8, 3, whole=False)
    assert [len(w.x) for w in loader] == [8, 8, 8, 8, 1]
    assert predicted(loader) == list(range(1, 100))


def test_a_stream_goes_on_to_the_end_of_the_text():
    windows = list(Stream(text(50), 20))
    assert torch.equal(torch.cat([w.x for w in windows])[:, 0], torch.arange(49))
    assert [w.step for w in windows] == [0, 20, 40]
    assert [(w.fresh, w.kept) for w in windows] == [(True, True), (False, True), (False, False)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: IndependentWindows(text(100), 7, 3, seed=1, crop=True),
        lambda: CarriedWindows(text(100), 7, 3),
        lambda: Stream(text(100), 30),
    ],
    ids=["independent", "carried", "stream"],
)
@pytest.mark.parametrize("done", range(4))
def test_goes_on_after_any_number_of_windows(make, done):
    whole, stopped, resumed = make(), make(), make()
    for loader in (whole, stopped):
        loader.set_epoch(3)
    start = [w.x.tolist() for _, w in zip(range(done), stopped, strict=False)]
    resumed.load_state_dict(stopped.state_dict())
    iterator = iter(resumed)
    resumed.set_epoch(3)
    assert start + [w.x.tolist() for w in iterator] == [w.x.tolist() for w in whole]


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: IndependentWindows(text(7), 7, 1), "ends after 7 symbols.*of 7 .*needs 8"),
        (lambda: CarriedWindows(text(14), 7, 2), "ends after 14 symbols.*2 rows needs 15"),
        (lambda: Stream(text(1)), "ends after 1 symbols, a prediction needs 2"),
    ],
)
def test_a_window_longer_than_the_text(make, what):
    with pytest.raises(ValueError, match=f"some/file {what}"):
        make()
