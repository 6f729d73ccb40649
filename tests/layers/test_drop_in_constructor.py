"""With norm=None a sequence class is built, named, filled and printed as torch.nn's."""

import pytest
import torch
from torch import nn

import rnnorm

# in RNNBase's own order: nn.RNN and nn.GRU take proj_size by position too, where it must be 0
POSITIONAL = {
    "RNN": (3, 4, 2, "relu", False, True, 0.5, True, 0, "cpu", torch.float64),
    "LSTM": (3, 4, 2, False, True, 0.5, True, 2, "cpu", torch.float64),
    "GRU": (3, 4, 2, False, True, 0.5, True, 0, "cpu", torch.float64),
}
NAMES = ["input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout"]
NAMES += ["bidirectional", "proj_size", "device", "dtype"]


@pytest.mark.parametrize("count", range(2, 12))
def test_arguments_are_taken_by_position(plain, count, identical):
    arguments = POSITIONAL[plain.name][:count]
    torch.manual_seed(0)
    theirs = getattr(nn, plain.name)(*arguments)
    torch.manual_seed(0)
    ours = getattr(rnnorm, plain.name)(*arguments)
    assert repr(ours) == repr(theirs)
    identical(list(ours.parameters()), list(theirs.parameters()))


@pytest.mark.parametrize("first", range(10))
def test_arguments_are_taken_by_keyword(first, identical):
    positional = POSITIONAL["LSTM"][:first]
    keywords = dict(zip(NAMES[first:], POSITIONAL["LSTM"][first:], strict=True))
    torch.manual_seed(0)
    theirs = nn.LSTM(*positional, **keywords)
    torch.manual_seed(0)
    ours = rnnorm.LSTM(*positional, **keywords)
    assert repr(ours) == repr(theirs)
    identical(list(ours.parameters()), list(theirs.parameters()))


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (3,),
        (0, 4),
        (-1, 4),
        (3, 0),
        (3, -4),
        (3.0, 4),
        ("3", 4),
        (3, 4.0),
        (3, 4, 0),
        (3, 4, -1),
    ],
    ids=repr,
)
def test_wrong_sizes_fail_as_in_torch(plain, arguments, same_error):
    same_error(
        lambda: getattr(rnnorm, plain.name)(*arguments),
        lambda: getattr(nn, plain.name)(*arguments),
    )


@pytest.mark.parametrize(
    "options",
    [
        {"bias": 1},
        {"bias": None},
        {"batch_first": "yes"},
        {"dropout": -0.1},
        {"dropout": 1.5},
        {"dropout": True},
        {"dropout": "0.5"},
        {"dropout": float("nan")},
        {"dropout": 0.5},  # one layer: a warning, and here a warning is an error
        {"proj_size": -1},
        {"proj_size": 4},
        {"num_layers": 0},
        {"nonlinearity": "sigmoid"},
        {"nonlinearity": None},
        {"hidden": 4},
        {"input_size": 3},
        {"dtype": torch.int64},
        {"dtype": "float32"},
        {"device": "nowhere"},
    ],
    ids=repr,
)
def test_wrong_options_fail_as_in_torch(plain, options, same_error):
    same_error(
        lambda: getattr(rnnorm, plain.name)(3, 4, **options),
        lambda: getattr(nn, plain.name)(3, 4, **options),
    )


@pytest.mark.parametrize("name", ["RNN", "GRU"])
@pytest.mark.parametrize("proj_size", [0, 2])
def test_projections_are_refused_as_in_torch(name, proj_size, same_error):
    same_error(
        lambda: getattr(rnnorm, name)(3, 4, proj_size=proj_size),
        lambda: getattr(nn, name)(3, 4, proj_size=proj_size),
    )


def test_norm_is_keyword_only(plain, same_error):
    arguments = (*POSITIONAL[plain.name], "batch")
    same_error(
        lambda: getattr(rnnorm, plain.name)(*arguments),
        lambda: getattr(nn, plain.name)(*arguments),
    )


def test_the_dropout_warning_is_torchs(plain):
    with pytest.warns(UserWarning, match="dropout option adds dropout") as theirs:
        getattr(nn, plain.name)(3, 4, dropout=0.5)
    with pytest.warns(UserWarning, match="dropout option adds dropout") as ours:
        getattr(rnnorm, plain.name)(3, 4, dropout=0.5)
    assert [str(w.message) for w in ours] == [str(w.message) for w in theirs]


def test_parameters_have_torchs_names_order_shapes_and_values(sequence, identical):
    ours, theirs = sequence.twins()
    assert [name for name, _ in ours.named_parameters()] == [
        name for name, _ in theirs.named_parameters()
    ]
    identical(list(ours.parameters()), list(theirs.parameters()))
    assert all(type(parameter) is nn.Parameter for parameter in ours.parameters())


def test_construction_leaves_the_generator_where_torch_leaves_it(sequence):
    sequence.torch()
    theirs = torch.rand(1)
    sequence.rnnorm()
    assert torch.equal(torch.rand(1), theirs)


def test_reset_parameters_draws_what_torch_draws(sequence, identical):
    ours, theirs = sequence.twins()
    torch.manual_seed(5)
    theirs.reset_parameters()
    torch.manual_seed(5)
    ours.reset_parameters()
    identical(list(ours.parameters()), list(theirs.parameters()))


def test_state_dicts_are_exchanged_both_ways(sequence, identical):
    ours, theirs = sequence.rnnorm(seed=6), sequence.torch(seed=7)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert ours.state_dict()._metadata == theirs.state_dict()._metadata
    ours.load_state_dict(theirs.state_dict())
    identical(list(ours.parameters()), list(theirs.parameters()))
    others = sequence.rnnorm(seed=8)
    theirs.load_state_dict(others.state_dict())
    identical(list(others.parameters()), list(theirs.parameters()))


def test_there_are_no_buffers_and_no_submodules(sequence):
    ours = sequence.rnnorm()
    assert list(ours.buffers()) == []
    assert list(ours.children()) == []


def test_attributes_are_torchs(sequence):
    ours, theirs = sequence.twins()
    names = [*nn.RNNBase.__constants__, "training", *(["nonlinearity"] * (sequence.name == "RNN"))]
    assert {name: getattr(ours, name) for name in names} == {
        name: getattr(theirs, name) for name in names
    }


def test_repr_is_torchs(sequence):
    ours, theirs = sequence.twins(dropout=0.25, num_layers=2)
    assert repr(ours) == repr(theirs)
    assert ours.extra_repr() == theirs.extra_repr()


def test_all_weights_are_the_parameters_in_torchs_order(sequence, identical):
    ours, theirs = sequence.twins()
    identical(ours.all_weights, theirs.all_weights)
    flat = [weight for weights in ours.all_weights for weight in weights]
    assert all(a is b for a, b in zip(flat, ours.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_is_that_of_every_parameter(plain, dtype):
    ours = plain.rnnorm(dtype=dtype)
    assert {parameter.dtype for parameter in ours.parameters()} == {dtype}


def test_the_default_dtype_is_torchs(plain):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        ours = getattr(rnnorm, plain.name)(3, 4)
    finally:
        torch.set_default_dtype(before)
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float64}


def test_device_is_that_of_every_parameter(plain):
    ours = plain.rnnorm(device="meta")
    assert {parameter.device.type for parameter in ours.parameters()} == {"meta"}
    with torch.device("meta"):
        inside = plain.rnnorm()
    assert {parameter.device.type for parameter in inside.parameters()} == {"meta"}


def test_it_is_an_rnn_base_and_not_torchs_class(plain):
    ours = plain.rnnorm()
    assert isinstance(ours, nn.RNNBase)
    assert not isinstance(ours, getattr(nn, plain.name))
    assert type(ours).__name__ == plain.name


def test_flatten_parameters_changes_nothing(sequence, identical):
    ours, theirs = sequence.twins()
    assert ours.flatten_parameters() is None
    identical(list(ours.parameters()), list(theirs.parameters()))
    identical(ours(sequence.input()), theirs(sequence.input()))
