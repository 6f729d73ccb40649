import pytest
import torch
from torch import nn

import rnnorm
from rnnorm.diagnostics import batch_normalised, batch_statistics


class Model(nn.Module):
    def __init__(self, cell=rnnorm.LSTM):
        super().__init__()
        options = {"norm": "batch", "initial_noise": 0.5, "dropout": 0.5, "num_layers": 2}
        self.rnn = cell(3, 4, **options)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.rnn(x)[0])


@pytest.fixture(params=[rnnorm.LSTM, rnnorm.GRU, rnnorm.RNN])
def model(request):
    torch.manual_seed(0)
    model = Model(request.param)
    model(torch.randn(5, 6, 3))
    return model.eval()


def test_the_values_are_those_of_training_without_dropout_and_noise(model):
    x = torch.randn(5, 6, 3)
    with batch_statistics(model):
        got = model(x)
    calm = type(model.rnn)(3, 4, num_layers=2, norm="batch", initial_noise=0.0)
    calm.load_state_dict(model.rnn.state_dict())
    torch.testing.assert_close(got, calm.train()(x)[0], rtol=0, atol=0)
    assert not torch.allclose(got, model(x))


def test_a_selected_horizon_stays(model):
    model.rnn = type(model.rnn)(3, 4, norm=rnnorm.BatchNorm(horizon=10))
    model.train()(torch.randn(5, 6, 3))
    rnnorm.select_horizon(model, lambda model: abs(len(model.rnn.population_input_l0) - 4))
    with batch_statistics(model.eval()):
        model(torch.randn(7, 6, 3))
    assert len(model.rnn.population_input_l0) == 4


DRAWING = {
    "masks": lambda: rnnorm.LSTM(
        3, 4, norm="batch", recurrent_dropout=rnnorm.SequenceDropout(hidden=0.5)
    ),
    "boundaries": lambda: rnnorm.HMLSTM(3, 4, norm="batch", boundary="sample"),
}


@pytest.mark.parametrize("drawing", DRAWING.values(), ids=DRAWING)
def test_neither_masks_nor_boundaries_are_drawn(drawing):
    torch.manual_seed(0)
    layer, x = drawing(), torch.randn(9, 6, 3)
    layer(x)
    layer.eval()
    with batch_statistics(layer):
        first, again = layer(x)[0], layer(x)[0]
    assert torch.equal(first, again)
    layer.train()
    assert not torch.equal(layer(x)[0], layer(x)[0])


def test_everything_is_as_before_afterwards(model):
    x = torch.randn(9, 6, 3)
    before, options = {n: b.clone() for n, b in model.state_dict().items()}, repr(model.rnn)
    value = model(x)
    with batch_statistics(model):
        model(x)
        for gradient in (True, False):
            refused = pytest.raises(ValueError, match="at least 2 active rows")
            with torch.set_grad_enabled(gradient), refused:
                model(x[:, :1])
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert repr(model.rnn) == options
    assert not any(module.training for module in model.modules())
    assert torch.equal(model(x), value)


def test_a_cell_too():
    cell = rnnorm.LSTMCell(3, 4, norm="batch")
    names = set(vars(cell))
    with batch_statistics(cell.eval()):
        h, _ = cell(torch.randn(6, 3))
    assert not cell.training
    assert set(vars(cell)) == names
    assert torch.isfinite(h).all()
    assert (cell.population_input.num_batches_tracked == 0).all()


def test_only_batch_statistics_count():
    model = nn.ModuleList([rnnorm.LSTM(2, 3, norm=norm) for norm in (None, "layer", "joint")])
    assert batch_normalised(model) == [model[2]]


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"momentum": None}])
def test_ordinary_batch_norm_layers_too(options):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, **options), nn.Dropout(0.5))
    x = torch.randn(6, 3)
    model(x)
    before = {n: b.clone() for n, b in model.eval().state_dict().items()}
    with batch_statistics(model):
        got = model(3 * x)
    z = model[0](3 * x)
    expected = (z - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(got, expected)
    assert not any(module.training for module in model.modules())
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_batch_norm_without_population_statistics_stays_as_it_is():
    model = nn.BatchNorm1d(3, track_running_stats=False).eval()
    x = torch.randn(6, 3)
    with batch_statistics(model):
        got = model(x)
    torch.testing.assert_close(got, model(x))
    assert not model.training
