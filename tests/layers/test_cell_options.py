"""Options of the built-in cells that torch.nn does not have: peepholes, the reset gate's place."""

import pytest
import torch
from torch import nn

import rnnorm

PEEPHOLES = {None: [], "output": ["co"], "all": ["ci", "cf", "co"]}


def draw(cls, **options):
    torch.manual_seed(0)
    return cls(3, 4, dtype=torch.float64, **options)


@pytest.fixture
def x():
    torch.manual_seed(1)
    return torch.randn(5, 6, 3, dtype=torch.float64)


@pytest.mark.parametrize("peephole", PEEPHOLES)
def test_a_peephole_has_one_weight_a_unit(peephole):
    lstm = draw(rnnorm.LSTM, peephole=peephole, num_layers=2, bidirectional=True)
    plain = draw(rnnorm.LSTM, num_layers=2, bidirectional=True)
    more = [n for n in lstm.state_dict() if n not in plain.state_dict()]
    suffixes = ("_l0", "_l0_reverse", "_l1", "_l1_reverse")
    assert more == [f"weight_{gate}{s}" for s in suffixes for gate in PEEPHOLES[peephole]]
    assert all(lstm.get_parameter(n).shape == (4,) for n in more)
    assert all(0 < lstm.get_parameter(n).abs().max() <= 0.5 for n in more)
    assert all(torch.equal(p, lstm.get_parameter(n)) for n, p in plain.named_parameters())


@pytest.mark.parametrize("norm", [None, "batch", "layer"])
def test_peepholes_of_zero_are_none(x, norm):
    options = {"norm": norm, "initial_noise": 0.0, "proj_size": 2}
    lstm, plain = draw(rnnorm.LSTM, peephole="all", **options), draw(rnnorm.LSTM, **options)
    for name, parameter in lstm.named_parameters():
        if name.startswith("weight_c"):
            nn.init.zeros_(parameter)
    lstm.load_state_dict(plain.state_dict(), strict=False)
    for mine, theirs in zip(lstm(x)[1], plain(x)[1], strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_gru_that_resets_before_the_product_has_torchs_weights(x):
    gru = draw(rnnorm.GRU, reset_after=False, num_layers=2)
    theirs = nn.GRU(3, 4, 2, dtype=torch.float64)
    gru.load_state_dict(theirs.state_dict())
    assert not torch.allclose(gru(x)[0], theirs(x)[0])
    with torch.no_grad():
        # r = 1: the two places of the reset gate are one
        for layer in (gru, theirs):
            for k in range(2):
                layer.get_parameter(f"weight_ih_l{k}")[:4] = 0
                layer.get_parameter(f"weight_hh_l{k}")[:4] = 0
                layer.get_parameter(f"bias_ih_l{k}")[:4] = 100
    torch.testing.assert_close(gru(x)[0], theirs(x)[0])


@pytest.mark.parametrize("norm", ["batch", "layer", "joint"])
def test_the_gru_that_resets_before_the_product_normalises_two_products(x, norm):
    gru = draw(rnnorm.GRU, reset_after=False, norm=norm, initial_noise=0.0)
    hidden = "joint" if norm == "joint" else "recurrent"
    assert gru.get_parameter(f"gamma_{hidden}_l0").shape == (8,)
    assert gru.get_parameter(f"gamma_{hidden}_candidate_l0").shape == (4,)
    output, _ = gru(x)
    output.sum().backward()
    assert all(p.grad is not None for p in gru.parameters())


def test_the_gru_that_resets_the_whole_candidate_has_one_bias_and_one_joint_site(x):
    gru = draw(rnnorm.GRU, reset_after="both", norm="joint", initial_noise=0.0)
    assert gru.gamma_joint_l0.shape == (12,)
    output, _ = gru(x)
    with torch.no_grad():
        # the two biases are one
        gru.bias_ih_l0.add_(gru.bias_hh_l0)
        gru.bias_hh_l0.zero_()
    torch.testing.assert_close(gru(x)[0], output)


OPTIONS = {
    "peephole": (rnnorm.LSTM, {"peephole": "output"}, "peephole='output'"),
    "reset before": (rnnorm.GRU, {"reset_after": False}, "reset_after=False"),
    "reset both": (rnnorm.GRU, {"reset_after": "both"}, "reset_after='both'"),
}


@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize("norm", [None, "batch"])
def test_an_option_runs_as_on_the_reference_and_is_shown(x, case, norm):
    cls, options, shown = OPTIONS[case]
    layer = draw(cls, norm=norm, **options)
    assert shown in repr(layer)
    assert shown not in repr(draw(cls, norm=norm))
    with rnnorm.use_backend("reference"):
        want, _ = layer(x, lengths=[5] * 6, step=0) if norm is None else (None, None)
    if norm is None:
        torch.testing.assert_close(layer(x)[0], want)
    with (
        rnnorm.use_backend("aten"),
        pytest.raises(RuntimeError, match=r"torch\.nn has no"),
    ):
        layer(x)


@pytest.mark.parametrize("case", OPTIONS)
def test_wrong_forms_get_torchs_errors(x, case):
    cls, options, _ = OPTIONS[case]
    mine, theirs = draw(cls, **options), getattr(nn, cls.__name__)(3, 4, dtype=torch.float64)
    for wrong in (x[..., :2], x[0, 0], x[None]):
        with pytest.raises((RuntimeError, ValueError)) as error:
            theirs(wrong)
        with pytest.raises(type(error.value)) as own:
            mine(wrong)
        assert str(own.value) == str(error.value)


def test_options_that_do_not_exist_are_errors():
    with pytest.raises(ValueError, match="peephole must be None, 'output', 'all' or 'full'"):
        rnnorm.LSTM(3, 4, peephole="input")
    with pytest.raises(TypeError, match="reset_after should be of type bool, got: int"):
        rnnorm.GRU(3, 4, reset_after=0)
    with pytest.raises(ValueError, match="reset_after must be True, False or 'both', got 'after'"):
        rnnorm.GRU(3, 4, reset_after="after")
    with pytest.raises(ValueError, match=r"norm.joint must be None for GRU"):
        rnnorm.GRU(3, 4, norm="joint")


def test_autocast_runs_peepholes(x):
    lstm = rnnorm.LSTM(3, 4, norm="batch", peephole="all")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = lstm(x.float())
    output.float().sum().backward()
    assert lstm.weight_ci_l0.grad.dtype == torch.float32
