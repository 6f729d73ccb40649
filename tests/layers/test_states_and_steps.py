import warnings

import pytest
import torch

import rnnorm


@pytest.mark.parametrize("norm", ["batch", None])
@pytest.mark.parametrize("count", [1, 3])
def test_a_wrong_number_of_states_fails_as_in_torch(norm, count):
    x, state = torch.randn(6, 4, 3), (torch.zeros(1, 4, 5),) * count
    with pytest.raises((RuntimeError, IndexError)) as theirs:
        torch.nn.LSTM(3, 5)(x, state)
    with pytest.raises(theirs.type) as ours:
        rnnorm.LSTM(3, 5, norm=norm)(x, state)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("norm", ["batch", None])
def test_a_wrong_number_of_cell_states_is_an_error(norm):
    with pytest.raises((RuntimeError, IndexError)):
        rnnorm.LSTMCell(3, 5, norm=norm)(torch.randn(4, 3), (torch.zeros(4, 5),))


@pytest.mark.parametrize("norm", ["batch", None])
def test_a_step_for_other_rows_is_an_error(norm):
    with pytest.raises(RuntimeError, match=r"step must have shape \(4,\)"):
        rnnorm.LSTM(3, 5, norm=norm).eval()(torch.randn(6, 4, 3), step=torch.tensor([1, 2]))
    with pytest.raises(RuntimeError, match=r"step must have shape \(4,\)"):
        rnnorm.LSTMCell(3, 5, norm=norm).eval()(torch.randn(4, 3), step=torch.tensor(3))


def test_an_unknown_nonlinearity_of_a_cell_is_an_error_when_it_is_called():
    cell = rnnorm.RNNCell(3, 5, nonlinearity="relU", norm="batch")
    with pytest.raises(RuntimeError, match="Unknown nonlinearity"):
        cell(torch.randn(4, 3))


def test_a_deep_layer_without_statistics_warns_once_and_at_the_call():
    layer = rnnorm.LSTM(3, 5, num_layers=2, bidirectional=True, norm="batch").eval()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layer(torch.randn(6, 4, 3))
        layer(torch.randn(6, 4, 3))
    assert [w.filename for w in caught] == [__file__]


def test_no_rows_with_no_lengths_is_an_empty_batch():
    layer = rnnorm.GRU(3, 5, norm="layer")
    assert layer(torch.randn(6, 0, 3), lengths=[])[0].shape == (6, 0, 5)


def test_cudnn_flattens_plain_layers_alone(monkeypatch):
    flattened = []
    monkeypatch.setattr(torch.nn.RNNBase, "flatten_parameters", lambda rnn: flattened.append(rnn))
    plain, normed = rnnorm.GRU(3, 5), rnnorm.GRU(3, 5, norm="batch")
    flattened.clear()
    normed.flatten_parameters()
    assert flattened == []
    plain.flatten_parameters()
    assert flattened == [plain]
