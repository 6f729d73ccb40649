import copy
import warnings

import numpy as np
import pytest
import torch

import rnnorm
from rnnorm.norm.population import Population


@pytest.mark.parametrize("norm", ["batch", None])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_states_fails_as_in_torch(norm, count):
    x, state = torch.randn(6, 4, 3), (torch.zeros(1, 4, 5),) * count
    with pytest.raises((RuntimeError, IndexError)) as theirs:
        torch.nn.LSTM(3, 5)(x, state)
    with pytest.raises(theirs.type) as ours:
        rnnorm.LSTM(3, 5, norm=norm)(x, state)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("norm", ["batch", None])
@pytest.mark.parametrize("count", [0, 1])
def test_a_wrong_number_of_cell_states_is_an_error(norm, count):
    with pytest.raises((RuntimeError, IndexError)):
        rnnorm.LSTMCell(3, 5, norm=norm)(torch.randn(4, 3), (torch.zeros(4, 5),) * count)


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


class Own(rnnorm.GRU):
    def forward(self, x):
        return super().forward(x)


@pytest.mark.parametrize("cls", [rnnorm.HMLSTM, rnnorm.ClockworkRNN, Own])
def test_so_does_every_layer_of_its_own(cls):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        cls(3, 8, norm="batch").eval()(torch.randn(6, 4, 3))
    assert [w.filename for w in caught] == [__file__]


def test_no_rows_with_no_lengths_is_an_empty_batch():
    x = torch.randn(6, 0, 3)
    assert rnnorm.GRU(3, 5, norm="layer")(x, lengths=[])[0].shape == (6, 0, 5)
    with rnnorm.use_backend("aten"):
        assert rnnorm.GRU(3, 5)(x, lengths=[])[0].shape == (6, 0, 5)


def test_cudnn_flattens_plain_layers_alone(monkeypatch):
    flattened = []
    monkeypatch.setattr(torch.nn.RNNBase, "flatten_parameters", lambda rnn: flattened.append(rnn))
    plain, normed = rnnorm.GRU(3, 5), rnnorm.GRU(3, 5, norm="batch")
    flattened.clear()
    normed.flatten_parameters()
    assert flattened == []
    plain.flatten_parameters()
    assert flattened == [plain]


@pytest.mark.parametrize("step", [2**62 + 1, 2**63 - 1, 2**63, 10**40, np.uint64(2**63)])
@pytest.mark.parametrize("norm", [None, "batch", "layer", rnnorm.BatchNorm(population="shared")])
@pytest.mark.parametrize("cls", [rnnorm.LSTM, rnnorm.GRU, rnnorm.LSTMCell, rnnorm.RNNCell])
def test_a_step_beyond_all_sequences_is_an_error(cls, norm, step):
    module, x = cls(3, 5, norm=norm), torch.randn(4, 3)
    x = x.expand(2, 4, 3) if issubclass(cls, torch.nn.RNNBase) else x
    module(x)
    for kind in (module.train(), module.eval(), rnnorm.freeze(module)):
        with pytest.raises(ValueError, match=r"step must be at most 2\*\*62, got "):
            kind(x, step=step)
    if step < 2**63:
        with pytest.raises(ValueError, match="step must be at most"):
            module(x, step=torch.tensor([0, 0, 0, int(step)]))


def test_the_largest_step_is_served_by_the_last_statistic():
    lstm = rnnorm.LSTM(3, 5, norm="batch")
    x = torch.randn(2, 4, 3)
    lstm(x)
    lstm.eval()
    torch.testing.assert_close(lstm(x, step=2**62), lstm(x, step=1))
    rows = torch.full((4,), 2**62)
    torch.testing.assert_close(lstm(x, step=rows), lstm(x, step=1))


def test_a_step_that_no_memory_is_left_for_says_so():
    with pytest.raises(RuntimeError, match=r"no memory for statistics of .* steps, which are step"):
        rnnorm.LSTM(3, 5, norm="batch")(torch.randn(2, 4, 3), step=2**61)


def test_only_a_lack_of_memory_is_called_so(monkeypatch):
    lstm, x = rnnorm.LSTM(3, 5, norm="batch"), torch.randn(2, 4, 3)

    def fail(error):
        def resize(*_):
            raise error

        monkeypatch.setattr(Population, "resize", resize)

    fail(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError, match=r"no memory for statistics of 2 steps"):
        lstm(x)
    fail(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"))
    with pytest.raises(RuntimeError, match=r"no memory for statistics of 2 steps"):
        lstm(x)
    fail(RuntimeError("an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match=r"^an illegal memory access was encountered$"):
        lstm(x)


def said_of_step(module, *calls):
    """Files from which a warning of a missing step was raised."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for arguments, options in calls:
            module(*arguments, **options)
    return [w.filename for w in caught if "population=" in str(w.message)]


def streams(cls, norm="batch", steps=6, **options):
    """A layer or cell with statistics of some steps, in evaluation, a frame and a state."""
    torch.manual_seed(0)
    module = cls(3, 5, norm=norm, **options)
    x, h = torch.randn(4, 3), torch.zeros(4, 5)
    if "Cell" not in cls.__name__:
        x, h = x.unsqueeze(0), h.unsqueeze(0)
        module(x.expand(steps, 4, 3))
    else:
        for step in range(steps):
            module(x, step=step)
    return module.eval(), x, (h, h) if "LSTM" in cls.__name__ else h


@pytest.mark.parametrize("cls", [rnnorm.RNN, rnnorm.LSTM, rnnorm.GRU, rnnorm.LSTMCell])
def test_a_stream_without_step_warns_once_and_at_the_call(cls):
    module, x, hx = streams(cls)
    assert said_of_step(module, ((x, hx), {}), ((x, hx), {})) == [__file__]
    # a copy is a layer of its own, and remembers
    assert said_of_step(copy.deepcopy(module), ((x, hx), {})) == []


@pytest.mark.parametrize("cls", [rnnorm.LSTM, rnnorm.LSTMCell])
def test_a_missing_step_means_0(cls):
    module, x, hx = streams(cls)
    with pytest.warns(UserWarning, match=r"Pass step.*population=\"shared\""):
        found = module(x, hx)
    torch.testing.assert_close(found, module(x, hx, step=0), rtol=0, atol=0)


def test_nothing_is_said_where_the_step_is_known_or_makes_no_difference():
    module, x, hx = streams(rnnorm.GRU)
    assert said_of_step(module, ((x, hx), {"step": 3}), ((x, hx), {"step": 0}), ((x,), {})) == []
    assert said_of_step(module.train(), ((x, hx), {})) == []
    cases = [
        {"norm": rnnorm.BatchNorm(population="shared")},
        {"norm": rnnorm.BatchNorm(horizon=1)},
        {"steps": 1},
        {"norm": rnnorm.BatchNorm(horizon=6), "steps": 1},
        {"norm": "laurent2015-sequence"},
        {"norm": "layer"},
        {"norm": None},
    ]
    for options in cases:
        module, x, hx = streams(rnnorm.GRU, **options)
        assert said_of_step(module, ((x, hx), {})) == [], options
    both = rnnorm.GRU(3, 5, bidirectional=True, norm="batch")
    both(torch.randn(6, 4, 3))
    given = torch.randn(6, 4, 3), torch.zeros(2, 4, 5)
    assert said_of_step(both.eval(), (given, {}), (given, {"lengths": [6, 5, 2, 2]})) == []


CHANGES = {"all": lambda s: s.zero_(), "a row": lambda s: s[:, 0].zero_()}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_final_states_may_be_changed_in_place(deep, norm, change, close):
    layer, x = deep.rnnorm(norm=norm), deep.input()

    def gradients(changed):
        output, state = layer(x)
        states = [*state] if isinstance(state, tuple) else [state]
        if not changed:
            states = [s.clone() for s in states]
        for s in states:
            change(s)
        cost = output.square().sum() + sum(s.square().sum() for s in states)
        return torch.autograd.grad(cost, list(layer.parameters()))

    close(gradients(True), gradients(False))


def test_final_states_may_be_detached_in_place(sequence, norm):
    layer = sequence.rnnorm(norm=norm)
    output, state = layer(sequence.input())
    for s in state if isinstance(state, tuple) else (state,):
        assert not s.detach_().requires_grad
    if not layer.batch_first:
        assert not output.detach_().requires_grad
