"""What changes between two calls of a layer, or before backward, and may not, is refused."""

import contextlib
import copy
from functools import partial

import pytest
import torch
from torch.func import functional_call
from torch.utils import _pytree as pytree

import rnnorm


@pytest.mark.parametrize("name", ["weight_hh_l0", "gamma_input_l0"])
def test_data_of_another_shape_is_refused_at_the_next_call(name, x, lstm):
    lstm(x)
    getattr(lstm, name).data = getattr(lstm, name).data[:-1]
    if not rnnorm.backends()["cpu"]:
        with pytest.raises(RuntimeError, match=f"{name[:-3]} must have shape"):
            lstm(x)


def test_a_gamma_that_is_none_is_refused_at_the_next_call(x, lstm):
    lstm(x)
    lstm.gamma_cell_l0 = None
    with pytest.raises(RuntimeError, match="gamma_cell_l0 must be a parameter"):
        lstm(x)


@pytest.mark.parametrize("name", ["weight_ih_l0", "bias_hh_l0", "gamma_input_l0", "beta_cell_l0"])
def test_a_parameter_of_another_shape_is_refused(name, x, lstm):
    short = {name: getattr(lstm, name)[:2]}
    several = {name: getattr(lstm, name).expand(2, *getattr(lstm, name).shape)}
    if not rnnorm.backends()["cpu"]:
        for wrong in (short, several):
            with pytest.raises(RuntimeError, match=f"{name[:-3]} must have shape"):
                functional_call(lstm, wrong, (x,))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("wrong", ["narrow", "fewer variances", "one variance"])
def test_a_statistic_of_another_shape_is_refused(wrong, frozen, lstm):
    lstm = rnnorm.freeze(lstm) if frozen else lstm
    population = lstm.population_input_l0
    x, state = torch.randn(5, 2, 3, dtype=torch.float64), torch.zeros(1, 2, 4, dtype=torch.float64)
    with torch.no_grad():
        lstm(x, (state, state), step=0)
    if wrong == "narrow":
        population.mean = population.mean[:, :3]
    else:
        population.var = population.var[: 1 if wrong == "one variance" else 2]
    if not rnnorm.backends()["cpu"]:
        with torch.no_grad(), pytest.raises(RuntimeError, match="a population must have 16"):
            lstm(x, (state, state), step=0)


@pytest.mark.parametrize(
    ("built", "set_to"), [("layer", None), (None, "batch"), ("batch", "layer")]
)
def test_another_norm_is_another_layer(built, set_to):
    layer = rnnorm.LSTM(3, 4, norm=built)
    same = layer.norm
    layer.norm = copy.deepcopy(same)
    with pytest.raises(AttributeError, match="build another with norm="):
        layer.norm = set_to
    assert layer.norm == same


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", ["gamma_input_l0", "beta_cell_l0"])
def test_a_scale_that_is_gone_is_named(name, backend, lstm):
    setattr(lstm, name, None)
    if not rnnorm.backends()[backend]:
        with (
            rnnorm.use_backend(backend),
            pytest.raises(RuntimeError, match=f"{name} must be a parameter"),
        ):
            lstm(torch.randn(5, 2, 3, dtype=torch.float64))


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: rnnorm.LSTM(3, 4, norm="batch", initial_noise=0), "weight_hh_l0"),
        (lambda: rnnorm.GRU(3, 4, 2, bidirectional=True, norm="layer"), "weight_ih_l1_reverse"),
        (lambda: rnnorm.LSTM(3, 4, proj_size=2, norm="layer"), "weight_hr_l0"),
        (lambda: rnnorm.LSTM(3, 4, peephole="all"), "weight_ci_l0"),
        (lambda: rnnorm.IndRNN(3, 4), "weight_hh_l0"),
        (lambda: rnnorm.GRUCell(3, 4, norm="layer"), "weight_hh"),
    ],
)
def test_a_weight_that_is_gone_is_named(make, name, backend, called):
    layer = make()
    x = torch.randn((5, 2, 3) if "_l" in name else (2, 3))
    if rnnorm.backends()[backend]:
        return
    with rnnorm.use_backend(backend) if backend == "reference" else contextlib.nullcontext():
        if called:
            layer(x)
        delattr(layer, name)
        before = copy.deepcopy(list(layer.buffers()))
        with pytest.raises(RuntimeError, match=f"{name} must be a parameter"):
            layer(x)
    assert all(map(torch.equal, before, layer.buffers()))


@pytest.mark.parametrize("gone", ["bias_ih_l0", "bias_hh_l0"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: rnnorm.GRU(3, 4, norm="layer"),
        lambda: rnnorm.GRU(3, 4, reset_after=False),
        lambda: rnnorm.GRU(3, 4, reset_after="both"),
        lambda: rnnorm.ClockworkRNN(3, 4, (1, 2)),
        lambda: rnnorm.LSTM(3, 4, norm="layer"),
    ],
)
def test_a_bias_that_is_gone_is_zero(make, gone):
    torch.manual_seed(0)
    layer, x = make(), torch.randn(5, 2, 3)
    with_zeros = copy.deepcopy(layer)
    torch.nn.init.zeros_(getattr(with_zeros, gone))
    setattr(layer, gone, None)
    for backend in ("reference", "cpu"):
        if rnnorm.backends()[backend] or (backend == "cpu" and layer.norm is None):
            continue
        with rnnorm.use_backend(backend):
            torch.testing.assert_close(layer(x), with_zeros(x))


@pytest.mark.parametrize("make", [rnnorm.LSTM, rnnorm.GRUCell])
def test_a_call_that_is_refused_adds_no_statistics(make):
    torch.manual_seed(0)
    layer, frame = make(3, 4, norm="batch", dtype=torch.float64), torch.randn(6, 3)
    call = {"step": 4} if make is rnnorm.GRUCell else {}
    x = frame if call else frame.expand(5, 6, 3)
    with pytest.raises((RuntimeError, ValueError)):
        layer(x, **call)
    assert len(layer.get_submodule("population_input" + "_l0" * (not call))) == 1


ALL_LAYERS = {
    "RNN": rnnorm.RNN,
    "LSTM": rnnorm.LSTM,
    "two layers, both directions": partial(rnnorm.LSTM, num_layers=2, bidirectional=True),
    "projected": partial(rnnorm.LSTM, proj_size=2),
    "peephole": partial(rnnorm.LSTM, peephole="all"),
    "GRU": rnnorm.GRU,
    "GRU both": partial(rnnorm.GRU, reset_after="both"),
    "LiGRU": rnnorm.LiGRU,
    "IndRNN": rnnorm.IndRNN,
    "MIRNN": rnnorm.MIRNN,
    "clockwork": partial(rnnorm.ClockworkRNN, periods=(1, 2)),
}


@pytest.mark.parametrize("backend", ["reference", None])
@pytest.mark.parametrize("norm", [None, "layer", "batch"])
@pytest.mark.parametrize("make", ALL_LAYERS.values(), ids=ALL_LAYERS)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_a_tensor_changed_in_place_before_backward_is_noticed(make, norm, backend):
    torch.manual_seed(0)
    layer = make(3, 4, norm=norm)
    states = layer(torch.randn(5, 6, 3))[1]
    for name in ("x", "hx", *dict(layer.named_parameters())):
        if name.startswith(("bias", "beta")):
            # nothing that is only added is saved by the reference
            continue
        given = [torch.randn(5, 6, 3, requires_grad=True)]
        given += [s.detach().requires_grad_() for s in pytree.tree_leaves(states)]
        x, *hx = [2 * leaf for leaf in given]
        with rnnorm.use_backend(backend) if backend else contextlib.nullcontext():
            output, _ = layer(x, tuple(hx) if len(hx) > 1 else hx[0])
        with torch.no_grad():
            {"x": x, "hx": hx[-1]}.get(name, getattr(layer, name, None)).add_(1)
        with pytest.raises(RuntimeError, match=r"modified (by an )?inplace"):
            output.sum().backward()
