"""With norm=None wrong inputs and states fail with torch.nn's error types and texts."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

import rnnorm


def zeros(*shape, dtype=torch.float64, device=None):
    return torch.zeros(*shape, dtype=dtype, device=device)


INPUTS = {
    "one dimension": zeros(3),
    "four dimensions": zeros(5, 2, 3, 1),
    "no dimension": zeros(()),
    "too wide": zeros(5, 2, 4),
    "too narrow": zeros(5, 2, 2),
    "too wide unbatched": zeros(5, 4),
    "float32": zeros(5, 2, 3, dtype=torch.float32),
    "int64": zeros(5, 2, 3, dtype=torch.int64),
    "no frames": zeros(0, 2, 3),
    "no frames unbatched": zeros(0, 3),
    "none": None,
    "text": "frames",
    "a list": [zeros(5, 2, 3)],
}
PACKED = {
    "too wide": PackedSequence(zeros(4, 4), torch.tensor([2, 2])),
    "float32": PackedSequence(zeros(4, 3, dtype=torch.float32), torch.tensor([2, 2])),
    "three dimensions": PackedSequence(zeros(4, 1, 3), torch.tensor([2, 2])),
}
HIDDEN = {
    "wrong rows": zeros(1, 3, 4),
    "wrong layers": zeros(2, 2, 4),
    "wrong width": zeros(1, 2, 5),
    "two dimensions": zeros(2, 4),
    "four dimensions": zeros(1, 1, 2, 4),
    "one dimension": zeros(4),
}
GOOD = zeros(1, 2, 4)
STATES = {
    **{f"h {name}": (wrong, GOOD) for name, wrong in HIDDEN.items()},
    **{f"c {name}": (GOOD, wrong) for name, wrong in HIDDEN.items()},
    "both wrong": (HIDDEN["wrong rows"], HIDDEN["wrong width"]),
}
# found by torch's operators: the text is the default kernel's alone
OPERATOR_STATES = {
    "one tensor": GOOD,
    "one in a tuple": (GOOD,),
    "three in a tuple": (GOOD, GOOD, GOOD),
    "h float32": (zeros(1, 2, 4, dtype=torch.float32), GOOD),
    "both float32": (zeros(1, 2, 4, dtype=torch.float32),) * 2,
    "h elsewhere": (zeros(1, 2, 4, device="meta"), GOOD),
}
UNBATCHED = zeros(5, 3)
X = zeros(5, 2, 3)


@pytest.mark.parametrize("x", INPUTS.values(), ids=INPUTS)
def test_wrong_inputs_fail_as_in_torch(plain, x, same, same_error):
    ours, theirs = plain.twins()
    same_error(lambda: ours(x), lambda: theirs(x))


@pytest.mark.parametrize("packed", PACKED.values(), ids=PACKED)
def test_wrong_packed_inputs_fail_as_in_torch(plain, packed, same_error):
    ours, theirs = plain.twins()
    same_error(lambda: ours(packed), lambda: theirs(packed))


@pytest.mark.parametrize("sizes", [[3, 2], [3, 3, 1], [3, 4], [4, 3, -1]])
def test_a_packed_sequence_has_the_frames_that_it_says(sizes):
    packed = PackedSequence(zeros(6, 3), torch.tensor(sizes))
    with pytest.raises(RuntimeError, match=r"batch_sizes of a PackedSequence must .* 6 frames"):
        rnnorm.RNN(3, 4, norm="layer", dtype=torch.float64)(packed)


@pytest.mark.parametrize("packed", PACKED.values(), ids=PACKED)
def test_the_reference_checks_packed_inputs_like_dense_ones(plain, packed):
    ours, _ = plain.twins()
    with (
        rnnorm.use_backend("reference"),
        pytest.raises((RuntimeError, ValueError), match=r"must (be|have)|does not match"),
    ):
        ours(packed)


@pytest.mark.parametrize("name", ["RNN", "GRU"])
@pytest.mark.parametrize("state", HIDDEN.values(), ids=HIDDEN)
def test_wrong_states_fail_as_in_torch(name, state, same, same_error):
    ours, theirs = getattr(rnnorm, name)(3, 4).double(), getattr(nn, name)(3, 4).double()
    same_error(lambda: ours(X, state), lambda: theirs(X, state))


@pytest.mark.parametrize("name", ["RNN", "GRU"])
@pytest.mark.parametrize("state", [(GOOD, GOOD), [GOOD]], ids=["tuple", "list"])
def test_states_of_a_wrong_type_fail_as_in_torch(name, state, same, same_error):
    ours, theirs = getattr(rnnorm, name)(3, 4).double(), getattr(nn, name)(3, 4).double()
    same_error(lambda: ours(X, state), lambda: theirs(X, state))


@pytest.mark.parametrize("name", ["RNN", "GRU"])
def test_states_of_another_dtype_fail_as_in_torch(name, same_error):
    ours, theirs = getattr(rnnorm, name)(3, 4).double(), getattr(nn, name)(3, 4).double()
    same_error(lambda: ours(X, GOOD.float()), lambda: theirs(X, GOOD.float()))
    with rnnorm.use_backend("reference"), pytest.raises((RuntimeError, ValueError), match="dtype"):
        ours(X, GOOD.float())


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_wrong_lstm_states_fail_as_in_torch(state, same, same_error):
    ours, theirs = rnnorm.LSTM(3, 4).double(), nn.LSTM(3, 4).double()
    same_error(lambda: ours(X, state), lambda: theirs(X, state))


@pytest.mark.parametrize("state", OPERATOR_STATES.values(), ids=OPERATOR_STATES)
def test_lstm_states_that_the_operator_refuses_fail_as_in_torch(state, same_error):
    ours, theirs = rnnorm.LSTM(3, 4).double(), nn.LSTM(3, 4).double()
    same_error(lambda: ours(X, state), lambda: theirs(X, state))


@pytest.mark.parametrize("state", OPERATOR_STATES.values(), ids=OPERATOR_STATES)
def test_the_reference_refuses_them_too(state):
    ours = rnnorm.LSTM(3, 4).double()
    with (
        rnnorm.use_backend("reference"),
        pytest.raises((RuntimeError, TypeError, ValueError, IndexError)),
    ):
        ours(X, state)


@pytest.mark.parametrize("side", ["h", "c"])
def test_wrong_projected_states_fail_as_in_torch(side, same, same_error):
    ours = rnnorm.LSTM(3, 4, proj_size=2).double()
    theirs = nn.LSTM(3, 4, proj_size=2).double()
    state = (GOOD, GOOD) if side == "h" else (zeros(1, 2, 2), zeros(1, 2, 2))
    same_error(lambda: ours(X, state), lambda: theirs(X, state))


def test_batched_states_of_unbatched_input_fail_as_in_torch(plain, same, same_error):
    ours, theirs = plain.twins()
    state = plain.state()
    same_error(lambda: ours(UNBATCHED, state), lambda: theirs(UNBATCHED, state))


@pytest.mark.parametrize(("lengths", "rows"), [((5, 4, 2), 2), ((5, 4, 2), 4), ((2, 5, 3), 2)])
def test_wrong_states_of_packed_input_fail_as_in_torch(sequence, lengths, rows, same_error):
    ours, theirs = sequence.twins()
    packed, state = sequence.packed(lengths), sequence.state(rows)
    with rnnorm.use_backend("aten"):
        same_error(lambda: ours(packed, state), lambda: theirs(packed, state))
    if not sequence.options.get("proj_size"):
        with pytest.raises(RuntimeError, match="Expected hidden"):
            ours(packed, state)
    with rnnorm.use_backend("reference"), pytest.raises(RuntimeError, match="Expected hidden"):
        ours(packed, state)


def test_a_wrong_batch_dimension_fails_as_in_torch(deep, same, same_error):
    ours, theirs = deep.twins(batch_first=True)
    state = deep.state(rows=5)
    same_error(
        lambda: ours(zeros(3, 5, 3), state),
        lambda: theirs(zeros(3, 5, 3), state),
    )


def test_unknown_and_surplus_arguments_of_forward_are_type_errors(plain):
    ours, _ = plain.twins()
    with pytest.raises(TypeError, match="mask"):
        ours(X, mask=None)
    with pytest.raises(TypeError, match="positional"):
        ours(X, None, torch.tensor([5, 5]))


def test_checkpoints_of_another_size_fail_as_in_torch(plain, same_error):
    ours, theirs = plain.twins()
    wider, deeper = plain.torch(bidirectional=True), plain.torch(num_layers=2)
    no_bias = plain.torch(bias=False)
    resized = type(theirs)(3, 5, dtype=torch.float64)
    for other in (wider.state_dict(), deeper.state_dict(), no_bias.state_dict()):
        same_error(lambda: ours.load_state_dict(other), lambda: theirs.load_state_dict(other))  # noqa: B023
    same_error(
        lambda: ours.load_state_dict(resized.state_dict()),
        lambda: theirs.load_state_dict(resized.state_dict()),
    )


def test_checkpoints_of_another_cell_fail_as_in_torch(plain, same_error):
    ours, theirs = plain.twins()
    for name in {"RNN", "LSTM", "GRU"} - {plain.name}:
        other = getattr(nn, name)(3, 4).state_dict()
        same_error(lambda: ours.load_state_dict(other), lambda: theirs.load_state_dict(other))  # noqa: B023


def test_incompatible_keys_are_reported_as_in_torch(plain):
    ours, theirs = plain.twins()
    other = plain.torch(num_layers=2, bias=False).state_dict()
    assert ours.load_state_dict(other, strict=False) == theirs.load_state_dict(other, strict=False)
