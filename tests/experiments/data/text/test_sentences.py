import pytest
import torch

from rnnorm.experiments.data.text.corpora import Text
from rnnorm.experiments.data.text.sentences import Sentences, split_sentences
from rnnorm.experiments.data.text.windows import PADDING

END = 0


def text(*symbols):
    return Text(torch.tensor(symbols, dtype=torch.uint8), "some/file")


def sentences(count=23):
    """Sentences of 2 to 11 symbols, each known by its first one."""
    made = [torch.tensor([100 + i] + [1 + i % 5] * (i * 7 % 10)) for i in range(count)]
    return [torch.cat([s, torch.tensor([END])]).to(torch.uint8) for s in made]


def rows(window):
    """The sentences of a minibatch, without padding."""
    return [
        [*window.x[:n, i].tolist(), int(window.y[n - 1, i])]
        for i, n in enumerate(window.lengths.tolist())
    ]


def test_a_sentence_ends_with_its_end_symbol():
    split = split_sentences(text(3, 4, END, 5, END), END)
    assert [s.tolist() for s in split] == [[3, 4, END], [5, END]]


def test_empty_lines_and_what_has_no_end_are_left_out():
    split = split_sentences(text(END, END, 3, END, END, 4, 5), END)
    assert [s.tolist() for s in split] == [[3, END]]


@pytest.mark.parametrize(
    ("symbols", "end"), [((3, 4), END), ((END, END), END), ((3, 4), None), ((), END)]
)
def test_a_text_without_a_sentence_is_refused(symbols, end):
    with pytest.raises(ValueError, match="some/file has no sentence"):
        split_sentences(text(*symbols), end)


def test_every_sentence_is_evaluated_once():
    given = sentences()
    read = [row for window in Sentences(given, 4) for row in rows(window)]
    assert sorted(read) == sorted(s.tolist() for s in given)


def test_every_sentence_is_trained_on_but_those_that_fill_no_minibatch():
    given = sentences()
    loader, left_out = Sentences(given, 4, seed=1), set()
    for epoch in range(20):
        loader.set_epoch(epoch)
        read = {tuple(row) for window in loader for row in rows(window)}
        assert len(read) == 20
        left_out |= {tuple(s.tolist()) for s in given} - read
    assert len(left_out) > 15


def test_the_next_symbol_is_predicted_and_nothing_behind_the_end():
    for window in Sentences(sentences(), 4, seed=1):
        assert window.x.dtype == window.y.dtype == torch.int64
        assert torch.equal(window.y[:-1] == PADDING, window.y[:-1].lt(0))
        inside = torch.arange(len(window.x)).unsqueeze(1) < window.lengths
        assert torch.equal(window.y != PADDING, inside)
        assert torch.equal(window.x[1:][inside[1:]], window.y[:-1][inside[1:]])
        assert (window.y[window.lengths - 1, torch.arange(len(window.lengths))] == END).all()
        assert (window.x >= 0).all()
        assert window.predictions == int((window.y != PADDING).sum())
        assert window.fresh
        assert not window.kept
        assert window.step == 0


@pytest.mark.parametrize(
    ("count", "training", "evaluation"),
    [(9, [4, 4], [4, 4, 1]), (8, [4, 4], [4, 4]), (3, [3], [3]), (1, [1], [1])],
)
def test_rows_of_the_minibatches(count, training, evaluation):
    for seed, sizes in ((1, training), (None, evaluation)):
        loader = Sentences(sentences(count), 4, seed)
        assert [w.x.size(1) for w in loader] == sizes
        assert len(loader) == len(sizes)


def test_the_order_is_a_function_of_seed_and_epoch():
    def order(seed, epoch):
        loader = Sentences(sentences(), 4, seed)
        loader.set_epoch(epoch)
        return [int(s) for w in loader for s in w.x[0]]

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3) != order(2, 3)


def test_without_a_seed_sentences_of_one_length_stand_together():
    lengths = [n for w in Sentences(sentences(), 4) for n in w.lengths.tolist()]
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("done", range(7))
def test_goes_on_after_any_number_of_minibatches(done):
    whole, stopped, resumed = (Sentences(sentences(), 4, seed=1) for _ in range(3))
    for loader in (whole, stopped):
        loader.set_epoch(3)
    start = [rows(w) for _, w in zip(range(done), stopped, strict=False)]
    resumed.load_state_dict(stopped.state_dict())
    iterator = iter(resumed)
    resumed.set_epoch(3)
    assert start + [rows(w) for w in iterator] == [rows(w) for w in whole]
