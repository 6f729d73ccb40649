import pytest
import torch

from rnnorm.experiments.data.batches import Batches


def batches(n=23, seed=1, batch_size=5):
    x = torch.arange(n, dtype=torch.float32).reshape(n, 1, 1).expand(n, 3, 2)
    return Batches(x, torch.arange(n), batch_size, seed)


def labels(loader):
    return [y.tolist() for _, y in loader]


def test_shapes_are_time_first():
    x, y = next(iter(batches()))
    assert x.shape == (3, 5, 2)
    assert y.shape == (5,)
    assert torch.equal(x[0, :, 0].long(), y)


def test_an_epoch_holds_every_example_once():
    loader = batches()
    assert len(loader) == 5
    assert sorted(label for batch in labels(loader) for label in batch) == list(range(23))
    assert [len(y) for y in labels(loader)] == [5, 5, 5, 5, 3]


@pytest.mark.parametrize(
    ("n", "size", "rows"),
    [(21, 10, [10, 11]), (22, 10, [10, 10, 2]), (3, 1, [1, 1, 1]), (1, 5, [1]), (6, 5, [6])],
)
def test_a_single_last_row_joins_the_minibatch_before_it(n, size, rows):
    loader = batches(n=n, batch_size=size)
    assert len(loader) == len(rows)
    assert [len(y) for y in labels(loader)] == rows
    assert sorted(label for batch in labels(loader) for label in batch) == list(range(n))


def test_order_is_a_function_of_seed_and_epoch():
    one, two = batches(), batches()
    first = labels(one)
    one.set_epoch(1)
    second = labels(one)
    assert first != second
    two.set_epoch(1)
    assert labels(two) == second
    assert labels(batches(seed=2)) != first
    assert labels(batches(seed=None))[0] == [0, 1, 2, 3, 4]


def test_order_does_not_touch_the_random_state():
    before = torch.get_rng_state()
    labels(batches())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("done", range(6))
def test_goes_on_after_any_number_of_batches(done):
    whole, stopped, resumed = batches(), batches(), batches()
    for loader in (whole, stopped):
        loader.set_epoch(2)
    start = [y.tolist() for _, (_, y) in zip(range(done), stopped, strict=False)]
    resumed.load_state_dict(stopped.state_dict())
    iterator = iter(resumed)
    resumed.set_epoch(2)
    assert start + [y.tolist() for _, y in iterator] == labels(whole)


def test_another_epoch_starts_at_its_beginning_whatever_was_loaded():
    loader = batches()
    loader.load_state_dict({"epoch": 0, "batch": 3})
    iterator = iter(loader)
    loader.set_epoch(1)
    assert len(list(iterator)) == 5


def test_loaded_state_serves_one_loop():
    loader = batches()
    loader.load_state_dict({"epoch": 0, "batch": 3})
    assert [len(labels(loader)), len(labels(loader))] == [2, 5]
