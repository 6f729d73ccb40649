"""Initial states that are an affine function of the mean of a sequence's real frames."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import rnnorm

LENGTHS = [3, 5, 1, 3]
KINDS = ["RNN", "LSTM", "GRU"]


@pytest.fixture
def x():
    torch.manual_seed(1)
    return torch.randn(5, 4, 3, dtype=torch.float64, requires_grad=True)


def make(kind, **more):
    torch.manual_seed(0)
    options = {"num_layers": 2, "bidirectional": True, "dtype": torch.float64} | more
    layer = getattr(rnnorm, kind)(
        3, 5, learn_initial_state="from_input", initial_noise=0.0, **options
    )
    for name, parameter in layer.named_parameters():
        if name[1:3] == "_0":
            nn.init.normal_(parameter)
    return layer


def states(layer, x, lengths):
    """hx, row by row."""
    means = [x[:n, b].sum(0) / n for b, n in enumerate(lengths)]
    hx = []
    for name in layer.cell.states:
        weight, bias = layer.get_parameter(f"{name}_0_weight"), layer.get_parameter(f"{name}_0")
        rows = [[w @ mean + b for mean in means] for w, b in zip(weight, bias, strict=True)]
        hx.append(torch.stack([torch.stack(row) for row in rows]))
    return tuple(hx) if len(hx) > 1 else hx[0]


@pytest.mark.parametrize("norm", [None, "layer"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_its_definition(kind, norm, x):
    layer = make(kind, norm=norm)
    got, _ = layer(x, lengths=LENGTHS)
    want, _ = layer(x, states(layer, x, LENGTHS), lengths=LENGTHS)
    torch.testing.assert_close(got, want)
    wanted = [x, *layer.parameters()]
    mine, theirs = (torch.autograd.grad(y.square().sum(), wanted) for y in (got, want))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", [None, "batch"])
def test_packed_padded_and_batch_first_are_equal_and_padding_is_nothing(kind, norm, x):
    layer, first = make(kind, norm=norm), make(kind, norm=norm, batch_first=True)
    want, _ = layer(x, lengths=LENGTHS)
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), enforce_sorted=False)
    torch.testing.assert_close(pad_packed_sequence(layer(packed)[0])[0], want)
    got = first(x.transpose(0, 1), lengths=LENGTHS)[0].transpose(0, 1)
    torch.testing.assert_close(got, want)
    real = (torch.arange(5).unsqueeze(1) < torch.tensor(LENGTHS)).unsqueeze(2)
    filled = x.detach().where(real, torch.tensor(float("nan"), dtype=x.dtype)).requires_grad_()
    output, _ = layer(filled, lengths=LENGTHS)
    torch.testing.assert_close(output, want)
    (gradient,) = torch.autograd.grad(output.square().sum(), filled)
    assert gradient[~real.expand_as(gradient)].eq(0).all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_dense_and_unbatched(kind, x):
    layer = make(kind)
    torch.testing.assert_close(layer(x)[0], layer(x, states(layer, x, [5] * 4))[0])
    torch.testing.assert_close(layer(x[:, 0])[0], layer(x[:, :1])[0].squeeze(1))
    assert layer(x[:, :0])[0].shape == (5, 0, 10)


def test_a_given_state_is_taken(x):
    layer = make("GRU")
    zeros = torch.zeros(4, 4, 5, dtype=x.dtype)
    plain = nn.GRU(3, 5, 2, bidirectional=True, dtype=x.dtype)
    plain.load_state_dict({name: layer.state_dict()[name] for name in plain.state_dict()})
    assert torch.equal(layer(x, zeros)[0], plain(x, zeros)[0])


def test_it_starts_at_zero_and_learns(x):
    torch.manual_seed(0)
    layer = rnnorm.LSTM(3, 5, proj_size=2, learn_initial_state="from_input").double()
    shapes = {n: tuple(p.shape) for n, p in layer.named_parameters() if n[1:3] == "_0"}
    assert shapes == {
        "h_0": (1, 2),
        "h_0_weight": (1, 2, 3),
        "c_0": (1, 5),
        "c_0_weight": (1, 5, 3),
    }
    assert all(layer.get_parameter(name).eq(0).all() for name in shapes)
    layer(x)[0].square().sum().backward()
    assert all(layer.get_parameter(name).grad.ne(0).any() for name in shapes)
    nn.init.ones_(layer.h_0_weight)
    layer.reset_parameters()
    assert layer.h_0_weight.eq(0).all()
    assert "learn_initial_state='from_input'" in repr(layer)


@pytest.mark.parametrize("cls", [rnnorm.ClockworkRNN, rnnorm.HMLSTM])
def test_other_cells_have_it(cls, x):
    layer = cls(3, 8, learn_initial_state="from_input", dtype=x.dtype)
    before = layer(x)[0]
    nn.init.ones_(layer.h_0_weight)
    assert not torch.allclose(layer(x)[0], before)


def test_autocast_and_half_types(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = make("LSTM", norm="batch", dtype=torch.float32)(x.detach().float())
    assert output.isfinite().all()
    large = torch.full((5, 4, 3), 60000.0, dtype=torch.float16)
    half = rnnorm.RNN(3, 5, learn_initial_state="from_input", norm="layer", dtype=torch.float16)
    # a sum of five frames is beyond float16
    assert half(large, lengths=[5, 5, 5, 2])[0].isfinite().all()


@pytest.mark.parametrize("norm", [None, "layer"])
def test_an_input_of_another_width_has_torchs_error(norm):
    with pytest.raises((RuntimeError, ValueError), match=r"input.size\(-1\) must be equal to"):
        make("LSTM", norm=norm)(torch.zeros(5, 4, 2, dtype=torch.float64))


def test_another_word_is_an_error():
    with pytest.raises(ValueError, match="must be True, False or 'from_input', got 'mean'"):
        rnnorm.RNN(3, 5, learn_initial_state="mean")
