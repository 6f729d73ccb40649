"""Rows of different lengths take the short way, with the values of the reference."""

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import rnnorm
from rnnorm.kernels.cpu import library
from rnnorm.layers.call import short_call

pytestmark = pytest.mark.skipif(bool(library.UNAVAILABLE), reason=library.UNAVAILABLE)

SIZE, UNITS, LENGTHS = 3, 20, [2, 5, 3, 5, 1]


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.fixture
def shorts(monkeypatch):
    """The results of short runs of a layer, None where the usual way was left to run it."""
    found, run = [], short_call.run

    def record(*given):
        found.append(run(*given))
        return found[-1]

    monkeypatch.setattr(short_call, "run", record)
    return found


def make(name="LSTM", norm="layer", **options):
    torch.manual_seed(0)
    layer = getattr(rnnorm, name)(SIZE, UNITS, norm=norm, dtype=torch.float64, **options)
    layer(draw(6, 7, SIZE))
    return layer


def packed(x, lengths=LENGTHS):
    return pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)


def everything(layer, x, form):
    """Return the results of a call and all gradients."""
    output, hidden = layer(packed(x)) if form == "packed" else layer(x, lengths=LENGTHS)
    output = output.data if form == "packed" else output
    hidden = hidden if isinstance(hidden, tuple) else (hidden,)
    loss = sum(part.sin().sum() for part in (output, *hidden))
    return output, hidden, torch.autograd.grad(loss, [x, *layer.parameters()])


@pytest.mark.parametrize("form", ["packed", "lengths"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
@pytest.mark.parametrize(
    ("norm", "training"), [("layer", True), ("rms", True), ("layer", False), ("batch", False)]
)
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN", "LiGRU"])
def test_values_and_gradients_are_those_of_the_reference(
    name, norm, training, options, form, shorts
):
    layer = make(name, norm, **options).train(training)
    x = draw(6, len(LENGTHS), SIZE)
    for row, length in enumerate(LENGTHS):
        x[length:, row] = torch.nan
    x.requires_grad_()
    shorts.clear()
    found = everything(layer, x, form)
    assert len(shorts) == len(layer._suffixes())
    assert None not in shorts
    with rnnorm.use_backend("reference"):
        expected = everything(layer, x, form)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_statistics_of_ragged_rows_are_taken_the_usual_way(shorts):
    layer = make(norm="batch")
    shorts.clear()
    layer(packed(draw(5, len(LENGTHS), SIZE)))
    assert shorts == [None]


def test_batch_sizes_that_change_before_the_backward_pass_are_noticed():
    layer, rows = make(), packed(draw(5, len(LENGTHS), SIZE))
    output, _ = layer(rows)
    rows.batch_sizes[1:] = 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.data.sum().backward()


def test_saved_tensors_may_be_copies(shorts):
    layer, x = make(), draw(5, len(LENGTHS), SIZE).requires_grad_()
    expected = everything(layer, x, "packed")
    shorts.clear()
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
        found = everything(layer, x, "packed")
    assert None not in shorts
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("norm", [None, "layer", "batch"])
@pytest.mark.parametrize("learned", [False, "from_input"])
def test_packed_rows_of_one_length_are_a_dense_batch(norm, learned):
    layer = make(norm=norm, bidirectional=True, learn_initial_state=learned).eval()
    for parameter in layer.parameters():
        parameter.data.uniform_(-0.5, 0.5)
    x, order = draw(4, 3, SIZE), torch.tensor([2, 0, 1])
    rows = PackedSequence(x[:, order].flatten(0, 1), torch.tensor([3] * 4), order, order.argsort())
    with rnnorm.use_backend("cpu"):
        output, hidden = layer(rows)
        expected, last = layer(x)
    torch.testing.assert_close(output.data.view(4, 3, -1), expected[:, order])
    torch.testing.assert_close(hidden, last)
    assert torch.equal(output.batch_sizes, rows.batch_sizes)
    # as torch.nn's, which is no view
    output.data.detach_()


def test_packed_rows_of_one_length_with_resets():
    layer, x = make(), draw(4, 3, SIZE)
    reset = torch.zeros(4, 3, dtype=torch.bool)
    reset[2, 0] = reset[1, 2] = True
    output, _ = layer(packed(x, [4] * 3), reset=packed(reset, [4] * 3))
    torch.testing.assert_close(output.data.view(4, 3, -1), layer(x, reset=reset)[0])
