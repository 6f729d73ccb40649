import numpy as np
import pytest
import torch

from rnnorm.experiments.data.speech.batches import FrameBatches
from rnnorm.experiments.data.speech.utterances import Utterance
from rnnorm.experiments.data.text.windows import PADDING


def utterances(count=23):
    """Utterances of 1 to 60 frames; a frame holds its number and that of its utterance."""

    def one(i, frames):
        rows = np.stack([np.full(frames, i), np.arange(frames)], 1).astype(np.float32)
        return Utterance(str(i), lambda: rows, (np.arange(frames) % 5).astype(np.int32))

    return [one(i, 1 + (i * 17) % 60) for i in range(count)]


def rows(batch):
    """Utterance and length of each row."""
    return list(zip(batch.x[0, :, 0].long().tolist(), batch.lengths.tolist(), strict=True))


def order(loader, epoch):
    loader.set_epoch(epoch)
    return [rows(batch) for batch in loader]


def test_a_minibatch_holds_whole_utterances_and_padding():
    for batch in FrameBatches(utterances(), 4, seed=1):
        frames = torch.arange(len(batch.x))
        assert torch.equal(batch.inside, frames[:, None] < batch.lengths)
        assert len(batch.x) == batch.lengths.max()
        assert batch.y.dtype == torch.int64
        assert (batch.y[~batch.inside] == PADDING).all()
        assert (batch.x[~batch.inside] == 0).all()
        for row, (number, length) in enumerate(rows(batch)):
            assert length == 1 + (number * 17) % 60
            assert torch.equal(batch.y[:length, row], frames[:length] % 5)
            assert torch.equal(batch.x[:length, row, 1], frames[:length].float())
            assert (batch.x[:length, row, 0] == number).all()


@pytest.mark.parametrize("seed", [None, 1])
def test_every_utterance_is_read_once_an_epoch(seed):
    for epoch in range(3):
        read = [
            number
            for batch in order(FrameBatches(utterances(), 4, seed), epoch)
            for number, _ in batch
        ]
        assert sorted(read) == list(range(23))


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(
    ("count", "size", "sizes"),
    [
        (9, 4, [4, 5]),
        (10, 4, [2, 4, 4]),
        (8, 4, [4, 4]),
        (3, 4, [3]),
        (1, 4, [1]),
        (3, 1, [1, 1, 1]),
    ],
)
def test_rows_of_the_minibatches(count, size, sizes, seed):
    loader = FrameBatches(utterances(count), size, seed)
    assert sorted(len(batch) for batch in order(loader, 0)) == sizes
    assert len(loader) == len(sizes)


def test_a_minibatch_has_utterances_of_similar_length():
    for batch in order(FrameBatches(utterances(230), 8, seed=1), 0):
        lengths = [length for _, length in batch]
        assert max(lengths) <= 1.5 * min(lengths) + 3


def test_the_order_is_a_function_of_seed_and_epoch():
    def of(seed, epoch):
        return order(FrameBatches(utterances(), 4, seed), epoch)

    assert of(1, 2) == of(1, 2)
    assert of(1, 2) != of(1, 3) != of(2, 3)


def test_both_the_minibatches_and_their_order_change_from_epoch_to_epoch():
    loader = FrameBatches(utterances(230), 8, seed=1)
    one, two = order(loader, 0), order(loader, 1)
    assert {frozenset(batch) for batch in one} != {frozenset(batch) for batch in two}
    longest = [[max(length for _, length in batch) for batch in epoch] for epoch in (one, two)]
    assert longest[0] != longest[1]
    assert longest[0] != sorted(longest[0])


def test_without_a_seed_the_order_is_that_of_the_lengths():
    lengths = [length for batch in order(FrameBatches(utterances(), 4), 0) for _, length in batch]
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("done", range(7))
def test_goes_on_after_any_number_of_minibatches(done):
    whole, stopped, resumed = (FrameBatches(utterances(), 4, seed=1) for _ in range(3))
    for loader in (whole, stopped):
        loader.set_epoch(3)
    start = [rows(batch) for _, batch in zip(range(done), stopped, strict=False)]
    resumed.load_state_dict(stopped.state_dict())
    iterator = iter(resumed)
    resumed.set_epoch(3)
    assert start + [rows(batch) for batch in iterator] == [rows(batch) for batch in whole]


def test_features_are_prepared_utterance_by_utterance():
    loader = FrameBatches(utterances(), 4, prepare=lambda x: x - x.mean(0))
    for batch in loader:
        torch.testing.assert_close(batch.x.sum(0), torch.zeros(batch.x.shape[1:]))


def test_no_features_are_read_before_their_minibatch():
    read = []

    def one(i):
        return Utterance(
            str(i), lambda: read.append(i) or np.zeros((3, 1), "f4"), np.zeros(3, "i4")
        )

    loader = iter(FrameBatches([one(i) for i in range(10)], 2, seed=1))
    assert read == []
    next(loader)
    assert len(read) == 2
