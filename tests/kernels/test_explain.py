"""``rnnorm.explain``: which kernel a call runs on, and why not on another."""

import copy
import logging

import pytest
import torch
from compiled_cells import layer
from torch.nn.utils.rnn import pack_padded_sequence

import rnnorm
from rnnorm import Zoneout
from rnnorm.kernels import dispatch, run_time_compilation

pytestmark = pytest.mark.usefixtures("compiling")


def explained(model, x=None, **given):
    return rnnorm.explain(model, torch.randn(4, 2, 3) if x is None else x, **given)


def test_explain_names_kernel_and_reasons_and_changes_nothing(uncompiled, caplog):
    model, x = layer("gru", "batch", dtype=torch.float32), torch.randn(4, 2, 3)
    before, calls = copy.deepcopy(model.state_dict()), dispatch.calls.copy()
    state = torch.get_rng_state()
    with caplog.at_level(logging.DEBUG, "rnnorm"):
        found = explained(model, x)
    assert found.kernel == "cpu"
    assert list(found.why_not) == ["aten"]
    assert str(found).startswith("runs on cpu\nnot on aten: torch.nn has no")
    assert not uncompiled
    assert not caplog.records
    assert dispatch.calls == calls
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_explain_says_why_a_cell_is_not_compiled(monkeypatch):
    model = layer("leaky", dtype=torch.float32)
    monkeypatch.setenv(run_time_compilation.SWITCH, "0")
    found = explained(model)
    assert found.kernel == "reference"
    assert "RNNORM_COMPILE=0" in found.why_not["cpu"]

    class Decides(rnnorm.Cell):
        def step(self, weights, x_term, state, normalise, t):
            h = state[0] if x_term > 0 else x_term
            return h, (h,)

    monkeypatch.setenv(run_time_compilation.SWITCH, "1")
    found = explained(rnnorm.Recurrent(Decides(), 3, 4))
    assert found.kernel == "reference"
    assert "decides by a value" in found.why_not["cpu"]


class Several(rnnorm.Cell):
    """A cell of any states, each the one before it delayed by a step."""

    dropouts = ("zoneout_h", "zoneout_c")

    def __init__(self, *states):
        object.__setattr__(self, "states", ("h", *states))

    def step(self, weights, x_term, state, normalise, t):
        h = torch.tanh(self.preactivation(weights, x_term, state[0], normalise) + state[-1])
        return h, (h, *state[:-1])


@pytest.mark.parametrize(
    ("states", "options", "reason"),
    [
        ("cnms", {}, "it has 5 states, of which the kernel has 4 at most"),
        ("nc", {"recurrent_dropout": Zoneout(cell=0.5)}, "state c has zoneout, but is not its sec"),
        ("cn", {"recurrent_dropout": Zoneout(cell=0.5)}, ""),
    ],
)
def test_states_that_the_kernel_does_not_have(uncompiled, states, options, reason):
    model = rnnorm.Recurrent(Several(*states), 3, 4, **options)
    assert reason in explained(model).why_not.get("cpu", "")
    assert explained(model).kernel == ("reference" if reason else "cpu")
    model(torch.randn(2, 2, 3))
    assert len(uncompiled) == (not reason)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (3, TypeError, "input must be a tensor or a PackedSequence, got int"),
        (torch.zeros(5, 2, 7), RuntimeError, "Expected 4, got 7"),
    ],
)
def test_explain_refuses_another_input(given, error, said):
    with pytest.raises(error, match=said):
        rnnorm.explain(rnnorm.LSTM(4, 8), given)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("lengths", [(4, 4), (4, 2)])
def test_explain_of_nested_input_is_what_its_call_does(lengths):
    rows = [torch.randn(length, 3) for length in lengths]
    x = torch.nested.nested_tensor(rows, layout=torch.jagged)
    model = rnnorm.LSTM(3, 4, batch_first=True)
    kernel, before = explained(model, x).kernel, dispatch.calls.copy()
    model(x)
    assert dispatch.calls - before == {kernel: 1}


def test_explain_is_what_the_next_call_does():
    x = torch.randn(4, 2, 3)
    for model, given in (
        (rnnorm.LSTM(3, 4), {}),
        (rnnorm.LSTM(3, 4), {"lengths": [4, 2]}),
        (rnnorm.GRU(3, 4, norm="layer"), {"return_states": True}),
        (rnnorm.LSTM(3, 4, proj_size=2, norm="layer"), {}),
        (rnnorm.ClockworkRNN(3, 4, periods=(1, 2)), {"reset": torch.zeros(4, 2).bool()}),
    ):
        kernel = explained(model, x, **given).kernel
        before = dispatch.calls.copy()
        model(x, **given)
        assert dispatch.calls - before == {kernel: 1}
    stream = rnnorm.Stateful(rnnorm.ClockworkRNN(3, 4, periods=(1, 2)))
    assert explained(stream, x).kernel == "reference"
    cell = rnnorm.LSTMCell(3, 4, norm="layer")
    assert explained(cell, x[0]).kernel == "cpu"
    with rnnorm.use_backend("reference"):
        assert explained(cell, x[0]) == ("reference", {})
    with rnnorm.use_backend("aten"), pytest.raises(RuntimeError, match="'aten' does not cover"):
        explained(cell, x[0])
    with pytest.raises(TypeError, match="input must be a tensor, got PackedSequence"):
        explained(cell, pack_padded_sequence(x, [4, 2]))
    with pytest.raises(TypeError, match=r"layer must be a layer of rnnorm.*got LSTM"):
        explained(torch.nn.LSTM(3, 4), x)


@pytest.mark.parametrize("run", [explained, lambda model, x, **given: model(x, **given)])
def test_an_argument_that_a_call_lacks_is_refused_as_by_the_call(run):
    hmlstm = rnnorm.HMLSTM(3, 4)
    run(hmlstm, torch.randn(4, 2, 3), lengths=[4, 2])
    with pytest.raises(TypeError, match="unexpected keyword argument 'return_states'"):
        run(hmlstm, torch.randn(4, 2, 3), return_states=True)
