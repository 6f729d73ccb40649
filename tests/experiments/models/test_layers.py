import pytest
import torch

import rnnorm
from rnnorm.experiments.models.layers import initialise, normalise_weights, recurrent


def test_every_cell_is_made_with_its_own_options():
    assert recurrent("LSTM", 3, 4, cell_options={"peephole": "output"}).weight_co_l0.shape == (4,)
    assert not recurrent("GRU", 3, 4, cell_options={"reset_after": False}).cell.reset_after
    assert recurrent("RNN", 3, 4, cell_options={"nonlinearity": "relu"}).nonlinearity == "relu"
    clockwork = recurrent("ClockworkRNN", 3, 4, cell_options={"periods": [1, 3]}, num_layers=2)
    assert (clockwork.cell.periods, clockwork.num_layers) == ((1, 3), 2)
    hmlstm = recurrent("HMLSTM", 3, 4, cell_options={"boundary": "soft", "slope": 2}, num_layers=2)
    assert (hmlstm.cell.boundary, hmlstm.slope, hmlstm.num_layers) == ("soft", 2, 2)


@pytest.mark.parametrize(
    ("name", "options", "spec"),
    [
        ("rms", None, rnnorm.RMSNorm()),
        ("rms", {"over": "gate"}, rnnorm.RMSNorm(over="gate")),
        (
            "layer",
            {"gamma": {"recurrent": 0.5}, "cell": False, "carry": True},
            rnnorm.LayerNorm(gamma={"recurrent": 0.5}, cell=False, carry=True),
        ),
    ],
)
def test_a_norm_of_a_name_is_its_spec(name, options, spec):
    assert recurrent("LSTM", 3, 4, norm=name, norm_options=options).norm == spec


@pytest.mark.parametrize(
    ("name", "options", "spec"),
    [
        ("Zoneout", None, rnnorm.Zoneout()),
        ("Zoneout", {"cell": 0.2}, rnnorm.Zoneout(cell=0.2)),
        ("CellDropout", {"sampling": "sequence"}, rnnorm.CellDropout(sampling="sequence")),
        ("SequenceDropout", {"hidden": 0.3}, rnnorm.SequenceDropout(hidden=0.3)),
        (None, None, None),
    ],
)
def test_dropout_of_a_name_is_its_spec(name, options, spec):
    made = recurrent("LSTM", 3, 4, recurrent_dropout=name, recurrent_dropout_options=options)
    assert made.recurrent_dropout == spec


@pytest.mark.parametrize(
    ("kind", "arguments", "what"),
    [
        (ValueError, {"cell": "LSTN"}, "cell must be one of 'LSTM', .*, got 'LSTN'"),
        (
            TypeError,
            {"cell_options": {"periods": [1, 2]}},
            "cell_options of LSTM must be of bias, peephole, got 'periods'",
        ),
        (TypeError, {"recurrent_dropout": "zoneout"}, "got 'zoneout'"),
        (
            ValueError,
            {"recurrent_dropout_options": {"p": 0.5}},
            "recurrent_dropout_options need recurrent_dropout to be 'Zoneout', .* or .*, got None",
        ),
        (
            ValueError,
            {"norm_options": {"gamma": 1.0}},
            "norm to be 'batch', 'layer' or 'rms', got None",
        ),
        (
            TypeError,
            {"norm": "rms", "norm_options": {"momentum": 0.1}},
            "RMSNorm has no 'momentum', it has input, recurrent, joint, cell, carry, over, gamma",
        ),
        (
            ValueError,
            {"norm": "layer", "norm_options": {"over": "gates"}},
            "over must be 'term', 'gate' or None, got 'gates'",
        ),
        (
            ValueError,
            {"norm": "layer", "norm_options": {"gamma": {"hidden": 1.0}}},
            "norm.gamma must be a number, or numbers by .*, got one for 'hidden'",
        ),
        (ValueError, {"cell": "HMLSTM", "dropout": 0.5}, "dropout must be 0.0 for an HMLSTM"),
        (
            ValueError,
            {"cell": "HMLSTM", "bidirectional": True},
            "bidirectional must be False for an HMLSTM, got True",
        ),
    ],
)
def test_what_does_not_fit_is_refused(kind, arguments, what):
    with pytest.raises(kind, match=what):
        recurrent(**{"cell": "LSTM", "input_size": 3, "hidden_size": 4} | arguments)


def test_normalised_weights_are_what_they_were_and_have_a_length_of_their_own():
    torch.manual_seed(0)
    rnn = recurrent("LSTM", 3, 4, num_layers=2)
    initialise(rnn, "orthogonal")
    x = torch.randn(5, 2, 3)
    before = rnn(x)[0]
    normalise_weights(rnn)
    torch.testing.assert_close(rnn(x)[0], before)
    lengths = [p for name, p in rnn.named_parameters() if name.endswith("original0")]
    assert [length.shape for length in lengths] == [(16, 1), (16, 1)]
    with torch.no_grad():
        lengths[0].mul_(3)
    torch.testing.assert_close(rnn.weight_hh_l0.norm(dim=1), torch.full((16,), 3.0))
    rnn(x)[0].sum().backward()
    assert all(p.grad is not None for p in rnn.parameters())
