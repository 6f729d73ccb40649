"""The cell classes: one step, and step by step the sequence class."""

import pytest
import torch
from torch import nn

import rnnorm
from rnnorm import BatchNorm, LayerNorm

# torch.nn's calls know no step
pytestmark = pytest.mark.filterwarnings("ignore:hx was given without step")

PAIRS = {
    "rnn": (rnnorm.RNNCell, rnnorm.RNN, nn.RNNCell),
    "lstm": (rnnorm.LSTMCell, rnnorm.LSTM, nn.LSTMCell),
    "gru": (rnnorm.GRUCell, rnnorm.GRU, nn.GRUCell),
}
NORMS = {
    "none": None,
    "batch": BatchNorm(),
    "horizon": BatchNorm(horizon=2),
    "shared-input": BatchNorm(recurrent=None, momentum=None),
    "joint": BatchNorm(input=None, recurrent=None, joint="frame", gamma=0.5),
    "carry": BatchNorm(carry="frame"),
    "layer": LayerNorm(),
}


def options_of(kind, norm):
    """Whether the cell of this kind accepts the norm."""
    if isinstance(norm, BatchNorm):
        return not (norm.joint and kind == "gru") and not (norm.carry and kind != "lstm")
    return True


CASES = [
    pytest.param(kind, norm, id=f"{kind}-{name}")
    for kind in PAIRS
    for name, norm in NORMS.items()
    if options_of(kind, norm)
]


def pair(kind, norm, **options):
    """A sequence layer and the cell with its parameters."""
    torch.manual_seed(0)
    cell_class, sequence_class, _ = PAIRS[kind]
    sequence = sequence_class(3, 4, norm=norm, initial_noise=0.0, dtype=torch.float64, **options)
    cell = cell_class(3, 4, norm=norm, dtype=torch.float64, **options)
    with torch.no_grad():
        for name, parameter in sequence.named_parameters():
            if "gamma" in name or "beta" in name:
                parameter.uniform_(0.3, 0.9)
            cell.get_parameter(name.replace("_l0", "")).copy_(parameter)
    return cell, sequence


def parts(state):
    return state if isinstance(state, tuple) else (state,)


def unroll(cell, x, state=None):
    outputs = []
    for t, frame in enumerate(x.unbind(0)):
        state = cell(frame, state, step=t)
        outputs.append(parts(state)[0])
    return torch.stack(outputs), state


@pytest.mark.parametrize("given_state", [False, True])
@pytest.mark.parametrize(("kind", "norm"), CASES)
def test_step_by_step_a_cell_is_the_sequence_class(kind, norm, given_state):
    cell, sequence = pair(kind, norm)
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    state = tuple(torch.randn(5, 4, dtype=torch.float64) for _ in range(1 + (kind == "lstm")))
    hx = [state if kind == "lstm" else state[0], tuple(s[None] for s in state)]
    hx = [hx[0], hx[1] if kind == "lstm" else hx[1][0]] if given_state else [None, None]

    def compare():
        got, state = unroll(cell, x, hx[0])
        want, final = sequence(x, hx[1])
        torch.testing.assert_close(got, want)
        for mine, theirs in zip(parts(state), parts(final), strict=True):
            torch.testing.assert_close(mine, theirs[0])
        return got, want

    got, want = compare()
    cotangent = torch.randn_like(want)
    named = dict(sequence.named_parameters())
    wanted = torch.autograd.grad((want * cotangent).sum(), list(named.values()))
    found = torch.autograd.grad(
        (got * cotangent).sum(), [cell.get_parameter(n.replace("_l0", "")) for n in named]
    )
    for name, mine, theirs in zip(named, found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, msg=lambda text, name=name: f"{name}: {text}")
    mine = dict(cell.named_buffers())
    for name, buffer in sequence.named_buffers():
        torch.testing.assert_close(mine[name.replace("_l0", "")], buffer)
    cell.eval()
    sequence.eval()
    compare()


@pytest.mark.parametrize("kind", PAIRS)
def test_an_evaluated_cell_takes_rows_of_different_ages(kind):
    cell, _ = pair(kind, BatchNorm())
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    unroll(cell, x)
    cell.eval()
    ages = torch.tensor([3, 0, 1, 9, 1])
    together = parts(cell(x[0], None, step=ages))
    for b, age in enumerate(ages.tolist()):
        alone = parts(cell(x[0, b : b + 1], None, step=age))
        for mine, theirs in zip(together, alone, strict=True):
            torch.testing.assert_close(mine[b : b + 1], theirs)


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("norm", [BatchNorm(), LayerNorm(), None])
def test_a_cell_takes_one_unbatched_row(kind, norm):
    cell, _ = pair(kind, norm)
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    unroll(cell, x)
    cell.eval()
    want = parts(cell(x[0]))
    got = parts(cell(x[0, 2]))
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs[2])


@pytest.mark.parametrize("kind", PAIRS)
def test_one_row_in_training_is_an_error(kind):
    cell, _ = pair(kind, BatchNorm())
    for x in (torch.zeros(1, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"(?i)row"):
            cell(x)


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("step", [-1, torch.tensor([0, -1, 0, 0, 0]), torch.tensor([1, 2])])
def test_a_step_that_no_row_can_have_is_an_error(kind, step):
    cell, _ = pair(kind, BatchNorm())
    unroll(cell, torch.randn(2, 5, 3, dtype=torch.float64))
    with pytest.raises((ValueError, RuntimeError), match="step"):
        cell.eval()(torch.zeros(5, 3, dtype=torch.float64), None, step=step)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", PAIRS)
def test_without_a_norm_a_cell_is_torchs_own(kind, bias):
    ours, _, torchs = PAIRS[kind]
    torch.manual_seed(0)
    want = torchs(3, 4, bias=bias)
    torch.manual_seed(0)
    got = ours(3, 4, bias=bias)
    assert list(got.state_dict()) == list(want.state_dict())
    assert all(torch.equal(got.state_dict()[n], p) for n, p in want.state_dict().items())
    assert repr(got) == repr(want)
    want.load_state_dict(got.state_dict())
    for x in (torch.randn(5, 3), torch.randn(3)):
        state = want(x)
        for mine, theirs in zip(parts(got(x)), parts(state), strict=True):
            assert torch.equal(mine, theirs)
        for mine, theirs in zip(parts(got(x, state)), parts(want(x, state)), strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("norm", [None, BatchNorm()])
def test_a_wrong_shape_gets_torchs_error(kind, norm):
    ours, _, torchs = PAIRS[kind]
    got, want = ours(3, 4, norm=norm), torchs(3, 4)
    state = torch.zeros(2, 5)
    wrong = [
        (torch.zeros(2, 7), None),
        (torch.zeros(2, 2, 2, 3), None),
        (torch.zeros(2, 3), (state, state) if kind == "lstm" else state),
    ]
    for arguments in wrong:
        with pytest.raises((RuntimeError, ValueError)) as theirs:
            want(*arguments)
        with pytest.raises(type(theirs.value)) as mine:
            got(*arguments)
        if norm is None:
            assert str(mine.value) == str(theirs.value)


def test_a_relu_cell_is_a_relu_layer():
    cell, sequence = pair("rnn", BatchNorm(), nonlinearity="relu")
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    torch.testing.assert_close(unroll(cell, x)[0], sequence(x)[0])


@pytest.mark.parametrize("kind", PAIRS)
def test_a_cell_has_the_parameters_of_the_layer_without_the_layers_suffix(kind):
    cell, sequence = pair(kind, BatchNorm())
    want = {name.replace("_l0", "") for name in sequence.state_dict()}
    assert set(cell.state_dict()) == want
