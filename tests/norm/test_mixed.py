"""A mapping of sites to specs: what it is, what it accepts, and the error for what it does not."""

import copy
import pickle

import pytest
import torch

import rnnorm
from rnnorm import (
    GRU,
    LSTM,
    RNN,
    BatchNorm,
    GRUCell,
    LayerNorm,
    LSTMCell,
    Recurrent,
    RMSNorm,
    RNNCell,
)
from rnnorm.kernels import dispatch
from rnnorm.kernels.call import Request
from rnnorm.kernels.triton import layer as triton

# speechbrain's SLiGRU has these two kinds at these two sites
MIXED = {"input": BatchNorm(input="sequence", momentum=0.05), "recurrent": LayerNorm(gamma=0.5)}


def test_each_site_has_its_own_scale_and_statistics():
    module = LSTM(2, 3, norm=MIXED | {"cell": BatchNorm(horizon=4, gamma={"cell": 0.25})})
    starts = {n: p[0].item() for n, p in module.named_parameters() if n[:4] in ("gamm", "beta")}
    assert starts == {
        "gamma_input_l0": pytest.approx(0.1),
        "gamma_recurrent_l0": 0.5,
        "gamma_cell_l0": 0.25,
        "beta_cell_l0": 0.0,
    }
    populations = dict(module.named_children())
    assert set(populations) == {"population_input_l0", "population_cell_l0"}
    assert len(populations["population_input_l0"]) == 1
    assert len(populations["population_cell_l0"]) == 4
    assert [p.momentum for p in populations.values()] == [0.05, 0.1]
    assert module.norm.of("input").eps == 1e-5
    assert module.norm.of("joint") is None


def test_only_the_named_sites_are_normalised():
    names = {n for n, _ in LSTM(2, 3, norm={"recurrent": "layer"}).named_parameters()}
    assert names - {n for n, _ in LSTM(2, 3).named_parameters()} == {"gamma_recurrent_l0"}


@pytest.mark.parametrize("site", ["joint", "carry"])
@pytest.mark.parametrize("spec", [BatchNorm(), LayerNorm(), RMSNorm(), "batch", "rms"])
def test_a_site_that_is_off_in_its_spec_is_turned_on(site, spec):
    norm = LSTM(2, 3, norm={site: spec}).norm
    assert norm.scope(site) in ("frame", True)
    assert norm.scope("input") is None


def test_the_norm_is_kept_as_one_object_that_compares_pickles_and_can_be_given_again():
    given = dict(MIXED)
    module = LSTM(2, 3, norm=given)
    norm = module.norm
    given["input"] = LayerNorm()
    again = LSTM(2, 3, norm=dict(reversed(MIXED.items()))).norm
    assert norm == again
    assert hash(norm) == hash(again)
    assert norm != LSTM(2, 3, norm=given).norm
    assert norm != BatchNorm()
    assert LSTM(2, 3, norm=norm).norm is norm
    assert LSTM(2, 3, norm=eval(repr(norm))).norm == norm
    assert f"norm={norm}" in repr(module)
    for twin in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert twin.norm == norm
    with pytest.raises(AttributeError, match="specs"):
        norm.specs = {}
    with pytest.raises(AttributeError, match="build another"):
        module.norm = LayerNorm()


def test_a_mapping_of_one_kind_is_that_spec():
    torch.manual_seed(0)
    spec = BatchNorm(gamma=0.3, min_rows=2, momentum=0.2)
    plain = LSTM(2, 3, norm=spec, initial_noise=0.0, dtype=torch.float64)
    mixed = LSTM(
        2, 3, norm=dict.fromkeys(("input", "recurrent", "cell"), spec), dtype=torch.float64
    )
    assert mixed.initial_noise == 0.1
    mixed.initial_noise = 0.0
    mixed.load_state_dict(plain.state_dict())
    x = torch.randn(6, 5, 2, dtype=torch.float64)
    for train in (True, True, False):
        plain.train(train), mixed.train(train)
        torch.testing.assert_close(mixed(x), plain(x))
    for got, want in zip(mixed.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(("site", "noise"), [("recurrent", 0.1), ("joint", 0.1), ("input", 0.0)])
def test_the_start_is_noisy_where_the_recurrence_is_batch_normalised(site, noise):
    assert LSTM(2, 3, norm={site: "batch"}).initial_noise == noise
    assert LSTM(2, 3, norm={site: "layer", "cell": "batch"}).initial_noise == 0.0


@pytest.mark.parametrize("cls", [RNN, LSTM, GRU])
def test_a_state_dict_goes_round(cls):
    x = torch.randn(5, 9, 2)
    module, other = (cls(2, 3, num_layers=2, norm=MIXED) for _ in range(2))
    module(x)
    other.load_state_dict(module.state_dict())
    torch.testing.assert_close(other.eval()(x), module.eval()(x))


@pytest.mark.parametrize("cls", [RNNCell, LSTMCell, GRUCell])
def test_a_cell_steps_as_the_layer_does(cls):
    torch.manual_seed(0)
    norm = {"input": BatchNorm(min_rows=2), "recurrent": RMSNorm(over="gate"), "cell": "layer"}
    cell = cls(2, 3, norm=norm, dtype=torch.float64)
    layer = getattr(rnnorm, cls.__name__[:-4])(2, 3, norm=norm, dtype=torch.float64)
    layer.load_state_dict(
        {
            f"{n.replace('.', '_l0.', 1)}" if "." in n else f"{n}_l0": v
            for n, v in cell.state_dict().items()
        }
    )
    x, state = torch.randn(4, 5, 2, dtype=torch.float64), None
    for step, frame in enumerate(x):
        state = cell(frame, state, step=step)
    output, _ = layer(x)
    torch.testing.assert_close(state[0] if isinstance(state, tuple) else state, output[-1])
    torch.testing.assert_close(list(cell.buffers()), list(layer.buffers()))


def test_the_cpu_kernel_runs_it_and_another_says_why_not():
    module = LSTM(2, 3, norm=MIXED)
    request = Request(module.cell, module.norm, torch.device("cpu"), torch.float32)
    assert triton.COVERAGE.refuses(request) == ""
    other = LSTM(2, 3, norm={"recurrent": "layer", "cell": "batch"}).norm
    said = triton.COVERAGE.refuses(request._replace(norm=other))
    assert said == "it has one norm for all sites but input"
    before = dispatch.calls.copy()
    module(torch.randn(4, 3, 2))
    assert dispatch.calls - before == {"reference" if dispatch.backends()["cpu"] else "cpu": 1}
    assert "MixedNorm of input, recurrent" in str(request)


@pytest.mark.parametrize(
    ("norm", "error", "text"),
    [
        ({}, ValueError, "norm must name sites, .*input, recurrent, joint, cell, carry, got none"),
        ({"banana": "batch"}, ValueError, "norm must name sites.*got 'banana'"),
        ({"recurrent_candidate": "batch"}, ValueError, "norm must name sites.*got 'recurrent_can"),
        ({3: "batch"}, ValueError, "norm must name sites.*got 3"),
        ({"input": "frame"}, ValueError, r"norm\['input'\] must be one of batch, .*got 'frame'"),
        ({"input": "bacth"}, ValueError, r"norm\['input'\] must be one of batch, .*got 'bacth'"),
        ({"input": None}, TypeError, r"norm\['input'\] must be a preset's name, .*got None"),
        ({"input": True}, TypeError, r"norm\['input'\] must be a preset's name, .*got True"),
        ({"input": LayerNorm}, TypeError, r"norm\['input'\] must be a preset's name, .*LayerNorm"),
        ({"input": {"input": "batch"}}, TypeError, r"norm\['input'\] must be a preset's name"),
        ({"joint": "batch", "input": "layer"}, ValueError, r"'joint'.*or leave out 'input'"),
        (
            {"joint": "batch", "input": "layer", "recurrent": "layer"},
            ValueError,
            r"'joint'.*or leave out 'input' and 'recurrent'",
        ),
        (
            {"input": BatchNorm(min_rows=2), "recurrent": "batch", "cell": "layer"},
            ValueError,
            "min_rows must be the same .*got {'input': 2, 'recurrent': 8}",
        ),
        ([("input", "batch")], TypeError, "norm must be None, .*a mapping of sites"),
    ],
)
@pytest.mark.parametrize("cls", [LSTM, LSTMCell])
def test_what_is_no_norm_is_an_error(cls, norm, error, text):
    with pytest.raises(error, match=text):
        cls(2, 3, norm=norm)


@pytest.mark.parametrize(
    ("make", "site"),
    [
        (lambda norm: GRU(2, 3, norm=norm), "joint"),
        (lambda norm: GRUCell(2, 3, norm=norm), "carry"),
        (lambda norm: RNN(2, 3, norm=norm), "carry"),
        (lambda norm: Recurrent(InputAlone(), 2, 3, norm=norm), "recurrent"),
    ],
)
def test_a_site_that_the_cell_lacks_is_an_error(make, site):
    for spec in ("batch", "layer", "rms"):
        with pytest.raises(
            ValueError, match=rf"norm.{site} must be left out for .*whose sites are"
        ):
            make({site: spec})


class InputAlone(rnnorm.Cell):
    sites = ("input",)


def test_the_cell_site_is_ignored_where_there_is_no_cell_state():
    module = GRU(2, 3, norm={"input": "batch", "cell": "layer"})
    assert not any("cell" in name for name in module.state_dict())


@pytest.mark.parametrize("cls", [RNNCell, LSTMCell, GRUCell])
def test_a_cell_class_sees_no_whole_sequence(cls):
    with pytest.raises(ValueError, match=r"norm.input must be 'frame' or None .*'sequence'"):
        cls(2, 3, norm=MIXED)


def test_a_minibatch_with_too_few_rows_names_the_site_that_takes_statistics():
    module = LSTM(2, 3, norm={"input": "layer", "recurrent": "batch"})
    with pytest.raises(ValueError, match=r"norm.recurrent: expected at least 2 active rows"):
        module(torch.randn(4, 1, 2))
    LSTM(2, 3, norm={"input": "layer", "recurrent": "rms"})(torch.randn(4, 1, 2))
