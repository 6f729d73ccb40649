"""The specs of norms: what they accept, and the error for what they do not."""

import copy
import dataclasses
import pickle

import pytest
import torch

import rnnorm
from rnnorm import GRU, HMLSTM, LSTM, RNN, BatchNorm, GRUCell, LayerNorm, LSTMCell, RMSNorm, RNNCell
from rnnorm.kernels import dispatch
from rnnorm.kernels.call import Request

PRESETS = [
    "cooijmans2016",
    "laurent2015-sequence",
    "laurent2015-frame",
    "bn-e*",
    "joint",
    "carry",
    "ba2016",
]


def test_the_defaults_are_the_final_papers():
    norm = BatchNorm()
    assert dataclasses.asdict(norm) == {
        "input": "frame",
        "recurrent": "frame",
        "joint": None,
        "cell": "frame",
        "carry": None,
        "gamma": 0.1,
        "eps": 1e-5,
        "momentum": 0.1,
        "population": "per_step",
        "horizon": None,
        "min_rows": 8,
    }
    for kind in (LayerNorm, RMSNorm):
        assert dataclasses.asdict(kind()) == {
            "input": True,
            "recurrent": True,
            "joint": False,
            "cell": True,
            "carry": False,
            "over": None,
            "gamma": 1.0,
            "eps": 1e-5,
        }


@pytest.mark.parametrize("norm", [BatchNorm(), LayerNorm(), RMSNorm()])
def test_a_specification_is_frozen_compares_and_pickles(norm):
    with pytest.raises(dataclasses.FrozenInstanceError):
        norm.eps = 1.0
    assert pickle.loads(pickle.dumps(norm)) == norm
    assert hash(norm) == hash(type(norm)())
    assert dataclasses.replace(norm, eps=1e-3) != norm


def test_a_specification_takes_keywords_only():
    for cls in (BatchNorm, LayerNorm, RMSNorm):
        with pytest.raises(TypeError):
            cls("frame")


@pytest.mark.parametrize("cls", [RNN, LSTM, GRU, RNNCell, LSTMCell, GRUCell])
@pytest.mark.parametrize("name", ["banana", "", "Batch", "cooijmans"])
def test_an_unknown_preset_is_answered_with_those_that_exist(cls, name):
    with pytest.raises(ValueError, match="norm") as error:
        cls(2, 3, norm=name)
    assert repr(name) in str(error.value)
    for known in ["batch", "layer", "rms", *PRESETS]:
        assert known in str(error.value), known


@pytest.mark.parametrize("norm", [3, torch.nn.BatchNorm1d(3), BatchNorm, {"input": "frame"}])
def test_a_norm_of_another_type_is_an_error(norm):
    with pytest.raises((TypeError, ValueError), match="norm"):
        LSTM(2, 3, norm=norm)


def test_a_class_in_place_of_a_norm_is_answered_with_a_call():
    with pytest.raises(TypeError, match=r"got the class: write LayerNorm\(\)"):
        LSTM(2, 3, norm=LayerNorm)


def names(module):
    return {name for name, _ in module.named_parameters() if "gamma" in name or "beta" in name}


@pytest.mark.parametrize(
    ("preset", "want", "gamma"),
    [
        ("batch", {"gamma_input", "gamma_recurrent", "gamma_cell", "beta_cell"}, 0.1),
        ("cooijmans2016", {"gamma_input", "gamma_recurrent", "gamma_cell", "beta_cell"}, 0.1),
        ("bn-e*", {"gamma_input", "gamma_recurrent", "gamma_cell", "beta_cell"}, 0.1),
        ("laurent2015-sequence", {"gamma_input"}, 1.0),
        ("laurent2015-frame", {"gamma_input"}, 1.0),
        ("joint", {"gamma_joint"}, 1.0),
        ("carry", {"gamma_carry", "beta_carry"}, 1.0),
        ("layer", {"gamma_input", "gamma_recurrent", "gamma_cell", "beta_cell"}, 1.0),
        ("ba2016", {"gamma_input", "gamma_recurrent", "gamma_cell", "beta_cell"}, 1.0),
        ("rms", {"gamma_input", "gamma_recurrent", "gamma_cell", "beta_cell"}, 1.0),
    ],
)
def test_a_preset_is_its_paper(preset, want, gamma):
    module = LSTM(2, 3, norm=preset)
    assert want <= {name.removesuffix("_l0") for name in names(module)}
    if preset != "carry":
        assert {f"{name}_l0" for name in want} == names(module)
    parameters = dict(module.named_parameters())
    for name in names(module):
        value = gamma if "gamma" in name else 0.0
        assert torch.equal(parameters[name], torch.full_like(parameters[name], value))
    if preset in ("bn-e*", "laurent2015-sequence"):
        assert module.norm.input == "sequence"
    elif preset in ("batch", "cooijmans2016", "laurent2015-frame"):
        assert module.norm.input == "frame"


@pytest.mark.parametrize("preset", ["ligru", "sligru"])
def test_the_presets_of_speechbrain_have_its_momentum(preset):
    assert LSTM(2, 3, norm=preset).norm.of("input").momentum == 0.05


def test_batch_and_layer_are_the_plain_specifications():
    assert LSTM(2, 3, norm="batch").norm == BatchNorm()
    assert LSTM(2, 3, norm="layer").norm == LayerNorm()
    assert LSTM(2, 3, norm="rms").norm == RMSNorm()
    assert LSTM(2, 3).norm is None


@pytest.mark.parametrize("site", ["recurrent", "joint", "cell", "carry"])
def test_only_the_input_term_can_be_normalised_over_whole_sequences(site):
    terms = {"input": None, "recurrent": None} if site == "joint" else {}
    with pytest.raises(ValueError, match=rf"{site}.*'sequence'"):
        LSTM(2, 3, norm=BatchNorm(**terms, **{site: "sequence"}))


@pytest.mark.parametrize("site", ["input", "recurrent", "joint", "cell", "carry"])
@pytest.mark.parametrize("scope", ["batch", "Frame", "", True, 1])
def test_an_unknown_scope_is_answered_with_those_that_exist(site, scope):
    terms = {"input": None, "recurrent": None} if site == "joint" else {}
    with pytest.raises(ValueError, match=rf"{site}.*frame"):
        LSTM(2, 3, norm=BatchNorm(**{**terms, site: scope}))


@pytest.mark.parametrize("terms", [{}, {"input": None}, {"recurrent": None}])
@pytest.mark.parametrize("cls", [RNN, LSTM])
def test_joint_excludes_the_terms_it_joins(cls, terms):
    with pytest.raises(ValueError, match="joint"):
        cls(2, 3, norm=BatchNorm(joint="frame", **terms))


@pytest.mark.parametrize("cls", [GRU, GRUCell])
def test_a_gru_has_no_joint_term(cls):
    with pytest.raises(ValueError, match=r"(?i)joint.*GRU|GRU.*joint"):
        cls(2, 3, norm=BatchNorm(input=None, recurrent=None, joint="frame"))
    with pytest.raises(ValueError, match=r"(?i)joint"):
        cls(2, 3, norm="joint")


@pytest.mark.parametrize("cls", [RNN, RNNCell, GRU, GRUCell])
def test_carry_needs_a_cell_state(cls):
    with pytest.raises(ValueError, match="carry"):
        cls(2, 3, norm=BatchNorm(carry="frame"))


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("terms", [{}, {"input": False}, {"recurrent": False}])
def test_the_joint_term_of_a_row_needs_the_terms_it_joins_off(kind, terms):
    with pytest.raises(ValueError, match=r"joint.*it needs input=False and recurrent=False, got"):
        kind(joint=True, **terms)
    off = {"input": False, "recurrent": False}
    assert names(LSTM(2, 3, norm=kind(joint=True, cell=False, **off))) == {"gamma_joint_l0"}


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("cls", [RNN, GRU, GRUCell])
def test_a_row_has_no_site_that_the_cell_lacks(kind, cls):
    with pytest.raises(ValueError, match=r"norm.carry must be False for .* got norm="):
        cls(2, 3, norm=kind(carry=True))
    if cls is not RNN:
        with pytest.raises(ValueError, match=r"norm.joint must be False for GRU"):
            cls(2, 3, norm=kind(input=False, recurrent=False, joint=True))


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("site", ["input", "recurrent", "joint", "cell", "carry"])
def test_a_site_of_a_row_is_on_or_off(kind, site):
    with pytest.raises(ValueError, match=rf"norm.{site} must be True or False, got 'frame'"):
        kind(**{site: "frame"})


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("value", ["gates", "", True, 2])
def test_over_is_a_term_or_a_gate(kind, value):
    with pytest.raises(ValueError, match=r"norm.over must be 'term', 'gate' or None, got"):
        kind(over=value)


def test_a_gate_of_one_column_is_not_normalised_by_itself():
    with pytest.raises(
        ValueError, match=r"norm.over must be None or 'term' for HMLSTM, got 'gate'"
    ):
        HMLSTM(2, 3, norm=LayerNorm(over="gate"))


@pytest.mark.parametrize(("kind", "default"), [(BatchNorm, 0.1), (LayerNorm, 1.0), (RMSNorm, 1.0)])
def test_gamma_may_differ_by_site(kind, default):
    given = {"recurrent": 0.25, "cell": 2}
    norm = kind(gamma=given)
    module = LSTM(2, 3, norm=norm)
    module.reset_parameters()
    for site, start in {"input": default, **given}.items():
        gamma = module.get_parameter(f"gamma_{site}_l0")
        assert torch.equal(gamma, torch.full_like(gamma, start)), site
    given["recurrent"] = 7.0
    assert norm == kind(gamma={"cell": 2, "recurrent": 0.25})
    assert hash(norm) == hash(kind(gamma={"cell": 2, "recurrent": 0.25}))
    assert norm != kind(gamma={"recurrent": 0.25})
    assert "gamma={'recurrent': 0.25, 'cell': 2}" in repr(norm)
    assert eval(repr(norm)) == norm
    for twin in (pickle.loads(pickle.dumps(norm)), copy.deepcopy(norm), dataclasses.replace(norm)):
        assert twin == norm
    with pytest.raises(TypeError):
        norm.gamma["recurrent"] = 1.0
    (cpu,) = [kernel for kernel in dispatch.KERNELS if kernel.name == "cpu"]
    request = Request(module.cell, norm, torch.device("cpu"), torch.float32)
    assert cpu.refuses(request) == cpu.refuses(request._replace(norm=kind()))


@pytest.mark.parametrize(
    "make",
    [
        lambda norm: rnnorm.ClockworkRNN(2, 4, (1, 2), norm=norm),
        lambda norm: GRU(2, 3, reset_after=False, norm=norm),
        lambda norm: HMLSTM(2, 3, norm=norm),
    ],
)
def test_gamma_of_a_site_is_that_of_all_terms_of_the_site(make):
    named = dict(make(BatchNorm(gamma={"recurrent": 0.25})).named_parameters())
    gamma = {name: set(value.tolist()) for name, value in named.items() if "gamma" in name}
    start = {True: torch.tensor(0.25).item(), False: torch.tensor(0.1).item()}
    assert len(gamma) > 2
    assert gamma == {name: {start["recurrent" in name]} for name in gamma}


@pytest.mark.parametrize("kind", [BatchNorm, LayerNorm, RMSNorm])
@pytest.mark.parametrize("site", ["banana", "joint", "recurrent_candidate", 3])
def test_gamma_of_a_site_that_is_not_normalised_is_an_error(kind, site):
    with pytest.raises(ValueError, match=rf"norm.gamma .*input, recurrent, cell.*got .*{site}"):
        kind(gamma={site: 1.0})


@pytest.mark.parametrize("value", [None, "0.1", True, [0.1]])
def test_gamma_of_a_site_is_a_number(value):
    with pytest.raises(TypeError, match=r"norm.gamma\['input'\] must be a number"):
        LayerNorm(gamma={"input": value})
    with pytest.raises(ValueError, match=r"norm.gamma\['input'\] must be finite"):
        LayerNorm(gamma={"input": float("nan")})


@pytest.mark.parametrize("cls", [RNN, RNNCell, GRU, GRUCell])
@pytest.mark.parametrize("norm", [BatchNorm(), LayerNorm(), RMSNorm()])
def test_the_cell_site_is_ignored_where_there_is_no_cell_state(cls, norm):
    assert not any("cell" in name for name in cls(2, 3, norm=norm).state_dict())


@pytest.mark.parametrize("cls", [RNNCell, LSTMCell, GRUCell])
@pytest.mark.parametrize("norm", [BatchNorm(input="sequence"), "bn-e*", "laurent2015-sequence"])
def test_a_cell_class_sees_one_step_and_no_sequence(cls, norm):
    with pytest.raises(ValueError, match="'sequence'"):
        cls(2, 3, norm=norm)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), -0.1])
@pytest.mark.parametrize("option", ["momentum", "eps"])
def test_momentum_and_eps_are_finite_and_not_negative(option, value):
    with pytest.raises(ValueError, match=option):
        BatchNorm(**{option: value})


def test_batch_norm_needs_an_eps_above_zero():
    # torch's batch norm does, and with equal rows nothing else stands between 0 and 0 / 0
    for eps in (0.0, 1e-46):
        with pytest.raises(ValueError, match="eps must be above 0 in float32"):
            BatchNorm(eps=eps)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1])
@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_the_eps_of_a_row_is_finite_and_not_negative(kind, value):
    with pytest.raises(ValueError, match="eps"):
        kind(eps=value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("cls", [BatchNorm, LayerNorm])
def test_gamma_is_finite(cls, value):
    with pytest.raises(ValueError, match="gamma"):
        cls(gamma=value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("momentum", 1.5),
        ("min_rows", 1),
        ("min_rows", 0),
        ("min_rows", -3),
        ("horizon", 0),
        ("horizon", -1),
        ("population", "per-step"),
        ("population", None),
    ],
)
def test_an_option_out_of_range_is_named_in_the_error(option, value):
    with pytest.raises(ValueError, match=option):
        BatchNorm(**{option: value})


@pytest.mark.parametrize("value", ["8", 8.0, True])
@pytest.mark.parametrize(("option", "accepted"), [("horizon", " or None"), ("min_rows", "")])
def test_a_number_of_steps_or_rows_is_an_int(option, accepted, value):
    with pytest.raises(TypeError, match=f"{option} must be an int{accepted}, got {value!r}"):
        BatchNorm(**{option: value})


def test_an_unknown_population_is_answered_with_those_that_exist():
    with pytest.raises(ValueError, match="per_step") as error:
        BatchNorm(population="running")
    assert "shared" in str(error.value)
    assert "'running'" in str(error.value)


@pytest.mark.parametrize("cls", [RNN, LSTM, GRU])
def test_a_norm_of_no_site_is_no_norm(cls):
    torch.manual_seed(0)
    nothing = BatchNorm(input=None, recurrent=None, cell=None)
    module, plain = cls(2, 3, norm=nothing), cls(2, 3)
    module.load_state_dict(plain.state_dict())
    x = torch.randn(4, 5, 2)
    torch.testing.assert_close(module(x)[0], plain(x)[0])


@pytest.mark.parametrize("norm", ["batch", "layer", None])
def test_a_norm_leaves_the_initialisation_of_the_weights(norm):
    torch.manual_seed(0)
    want = torch.nn.LSTM(2, 3, num_layers=2, bidirectional=True).state_dict()
    torch.manual_seed(0)
    got = rnnorm.LSTM(2, 3, num_layers=2, bidirectional=True, norm=norm).state_dict()
    assert all(torch.equal(got[name], want[name]) for name in want)
    assert norm is not None or got.keys() == want.keys()


def test_the_norm_stands_in_the_repr():
    assert "norm" in repr(LSTM(2, 3, norm="batch"))
    assert "norm" not in repr(LSTM(2, 3))


@pytest.mark.parametrize("bias", [True, False])
def test_beta_stands_where_no_bias_follows(bias):
    norm = BatchNorm(carry="frame")
    betas = {name for name in names(LSTM(2, 3, bias=bias, norm=norm)) if "beta" in name}
    assert betas == {"beta_cell_l0", "beta_carry_l0"}
    assert not any("beta" in name for name in names(GRU(2, 3, bias=bias, norm="batch")))
    assert not any("beta" in name for name in names(RNN(2, 3, bias=bias, norm="layer")))


def test_reset_parameters_forgets_everything():
    torch.manual_seed(0)
    module = LSTM(2, 3, norm="batch", learn_initial_state=True)
    fresh = {name: p.detach().clone() for name, p in module.named_parameters()}
    module(torch.randn(4, 5, 2))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)
    module.reset_parameters()
    for name, parameter in module.named_parameters():
        if name.startswith(("weight", "bias")):
            assert parameter.abs().max() <= 3**-0.5
        else:
            assert torch.equal(parameter, fresh[name]), name
    for population in module.children():
        assert not population.rows.any()
        assert not population.num_batches_tracked.any()
