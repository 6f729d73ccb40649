"""What is folded is the same function on plain torch.nn layers; what is not is refused."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.prune import l1_unstructured

import rnnorm

SHARED = {"population": "shared"}
JOINT = rnnorm.BatchNorm(input=None, recurrent=None, joint="frame", cell=None, **SHARED)
CASES = {
    "GRU": (rnnorm.GRU, rnnorm.BatchNorm(**SHARED), {"bias": False, "num_layers": 2}),
    "GRU-sequence": (rnnorm.GRU, rnnorm.BatchNorm(input="sequence", **SHARED), {}),
    "LSTM": (rnnorm.LSTM, rnnorm.BatchNorm(cell=None, **SHARED), {"batch_first": True}),
    "LSTM-sequence": (
        rnnorm.LSTM,
        "laurent2015-sequence",
        {"num_layers": 2, "bidirectional": True, "proj_size": 2},
    ),
    "LSTM-joint": (rnnorm.LSTM, JOINT, {"bias": False}),
    "RNN": (rnnorm.RNN, JOINT, {"nonlinearity": "relu", "bidirectional": True}),
    "mixed": (
        rnnorm.GRU,
        {
            "input": rnnorm.BatchNorm(input="sequence", eps=0.1),
            "recurrent": rnnorm.BatchNorm(momentum=None, **SHARED),
        },
        {"num_layers": 2},
    ),
    "none": (rnnorm.LSTM, None, {}),
}


def trained(cls, norm, **options):
    torch.manual_seed(0)
    layer = cls(3, 4, norm=norm, dtype=torch.float64, **options)
    for scale in (1, 3):
        layer(scale * torch.randn(6, 9, 3, dtype=torch.float64) + 1)
    return layer.eval()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_folded_layer_is_torchs_and_the_same_function(case, close):
    cls, norm, options = case
    layer = trained(cls, norm, **options)
    folded = rnnorm.fold(layer)
    assert type(folded) is getattr(nn, cls.__name__)
    x = torch.randn(20, 5, 3, dtype=torch.float64)
    close(folded(x), layer(x))


def test_a_model_is_folded_with_its_cells_and_shared_layers(close):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            norm = rnnorm.BatchNorm(cell=None, **SHARED)
            self.first = rnnorm.LSTM(3, 3, norm=norm)
            self.again = self.first
            self.cell = rnnorm.RNNCell(3, 2, norm=norm, nonlinearity="relu")

        def forward(self, x):
            return self.cell(self.again(self.first(x)[0])[0][-1])

    model = Model()
    model(torch.randn(5, 9, 3))
    model.eval()
    folded = rnnorm.fold(model)
    assert folded.first is folded.again
    assert isinstance(folded.cell, nn.RNNCell)
    assert isinstance(model.first, rnnorm.LSTM)
    x = torch.randn(7, 4, 3)
    torch.testing.assert_close(folded(x), model(x))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["RNNCell", "LSTMCell", "GRUCell"])
def test_a_folded_cell_is_torchs_and_the_same_function(name, bias, close):
    norm = rnnorm.BatchNorm(cell=None, **SHARED)
    cell = getattr(rnnorm, name)(3, 4, bias, norm=norm, dtype=torch.float64)
    x, h = torch.randn(9, 3, dtype=torch.float64) + 1, torch.randn(9, 4, dtype=torch.float64)
    state = (h, h) if name == "LSTMCell" else h
    cell(x, state)
    folded = rnnorm.fold(cell.eval())
    assert type(folded) is getattr(nn, name)
    close(folded(x, state), cell(x, state))


@pytest.mark.parametrize("make", [rnnorm.LSTM, rnnorm.GRUCell])
def test_without_biases_and_means_a_folded_layer_has_no_biases(make):
    assert not rnnorm.fold(make(3, 4, bias=False)).bias


@pytest.mark.parametrize("layer", [rnnorm.GRU(3, 4), rnnorm.GRUCell(3, 4)], ids=["layer", "cell"])
def test_what_is_folded_is_in_evaluation(layer):
    assert layer.training
    assert not rnnorm.fold(layer).training


def test_a_folded_layer_keeps_its_dropout():
    assert rnnorm.fold(rnnorm.GRU(3, 4, num_layers=2, dropout=0.5)).dropout == 0.5


def test_what_is_compiled_beside_the_layers_stays(close):
    layer = trained(rnnorm.GRU, rnnorm.BatchNorm(**SHARED))
    model = nn.ModuleDict({"rnn": layer, "beside": torch.compile(nn.Linear(4, 2))})
    folded = rnnorm.fold(model)
    assert type(folded["rnn"]) is nn.GRU
    x = torch.randn(6, 9, 3, dtype=torch.float64)
    close(folded["rnn"](x)[0], layer(x)[0])


def test_to_fold_draws_no_random_numbers():
    model = nn.Sequential(rnnorm.LSTM(3, 4), rnnorm.GRUCell(3, 4))
    before = torch.get_rng_state()
    rnnorm.fold(model)
    assert torch.equal(torch.get_rng_state(), before)


def pruned(layer):
    return l1_unstructured(layer, "weight_hh_l0", amount=0.5)


def hooked(layer):
    layer.register_forward_hook(lambda module, args, output: 2 * output)
    return layer


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (rnnorm.LSTM(3, 4, norm=rnnorm.BatchNorm(**SHARED)), "rnn: norm.cell"),
        (rnnorm.LSTM(3, 4, norm="carry"), "rnn: norm.carry"),
        (rnnorm.GRU(3, 4, norm="batch"), "rnn: norm.population .* 'per_step'.* norm.input"),
        (rnnorm.GRU(3, 4, norm=rnnorm.BatchNorm(horizon=1)), "norm.population"),
        (rnnorm.GRU(3, 4, norm="bn-e*"), "norm.recurrent"),
        (rnnorm.RNN(3, 4, norm="layer"), "rnn: norm.input"),
        (rnnorm.RNN(3, 4, norm="rms"), "rnn: norm.input .* got RMSNorm.*each row's own"),
        (
            rnnorm.GRU(3, 4, norm={"input": "laurent2015-sequence", "recurrent": "layer"}),
            "rnn: norm.recurrent .* got LayerNorm.*each row's own",
        ),
        (
            rnnorm.GRU(3, 4, norm={"input": "bn-e*", "recurrent": "batch"}),
            "rnn: norm.population .* 'per_step'.* norm.recurrent",
        ),
        (rnnorm.LSTM(3, 4, peephole="all"), "LSTM with peephole"),
        (rnnorm.GRU(3, 4, reset_after=False), "GRU with reset_after=False"),
        (rnnorm.GRU(3, 4, reset_after="both"), "GRU with reset_after='both'"),
        (rnnorm.RNN(3, 4, learn_initial_state=True), "RNN with learn_initial_state"),
        (rnnorm.GRU(3, 4, recurrent_dropout=rnnorm.Zoneout(cell=0)), "recurrent_dropout"),
        (rnnorm.ClockworkRNN(3, 4), "ClockworkRNN"),
        (weight_norm(rnnorm.GRU(3, 4), "weight_hh_l0"), "rnn: its weights must be plain"),
        (weight_norm(rnnorm.GRUCell(3, 4), "weight_hh"), "rnn: its weights must be plain"),
        (pruned(rnnorm.GRU(3, 4)), "rnn: it must have no forward hooks.*prune.remove"),
        (hooked(rnnorm.GRUCell(3, 4)), "rnn: it must have no forward hooks"),
        (torch.compile(rnnorm.GRU(3, 4)), "rnn: it must not be compiled"),
    ],
)
def test_what_would_be_another_function_is_refused_by_name(layer, named):
    with pytest.raises(ValueError, match=named):
        rnnorm.fold(nn.ModuleDict({"rnn": layer}))
