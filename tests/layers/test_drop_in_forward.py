"""With norm=None values, gradients and states are torch.nn's, on both kernels."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

import rnnorm


def test_output_and_state_are_torchs(sequence, same):
    ours, theirs = sequence.twins()
    same(ours(sequence.input()), theirs(sequence.input()))


def test_every_gradient_is_torchs(sequence, same, gradients):
    found = []
    for layer in sequence.twins():
        x = sequence.input().requires_grad_()
        state = sequence.state()
        leaves = [part.requires_grad_() for part in (state if type(state) is tuple else (state,))]
        found.append(gradients(layer(x, state), [x, *leaves, *layer.parameters()]))
    same(*found)


def test_an_initial_state_is_used_as_in_torch(sequence, same):
    ours, theirs = sequence.twins()
    x, state = sequence.input(), sequence.state()
    same(ours(x, state), theirs(x, state))
    same(ours(x, hx=state), theirs(x, hx=state))
    same(ours(input=x, hx=None), theirs(input=x, hx=None))


def test_unbatched_input_is_taken_as_in_torch(sequence, same):
    ours, theirs = sequence.twins()
    x, state = sequence.input(rows=None), sequence.state(rows=None)
    same(ours(x), theirs(x))
    same(ours(x, state), theirs(x, state))


@pytest.mark.parametrize("lengths", [(5, 4, 2), (2, 5, 3), (3, 3, 3), (1, 4), (1,)], ids=str)
def test_packed_input_is_taken_as_in_torch(sequence, lengths, same_packed):
    ours, theirs = sequence.twins()
    packed, state = sequence.packed(lengths), sequence.state(len(lengths))
    same_packed(ours(packed), theirs(packed))
    same_packed(ours(packed, state), theirs(packed, state))


def test_every_gradient_through_packed_input_is_torchs(sequence, same_packed, gradients):
    found = []
    for layer in sequence.twins():
        packed = sequence.packed()
        packed = PackedSequence(packed.data.requires_grad_(), *packed[1:])
        state = sequence.state()
        leaves = [part.requires_grad_() for part in (state if type(state) is tuple else (state,))]
        wanted = [packed.data, *leaves, *layer.parameters()]
        found.append(gradients(layer(packed, state), wanted))
    same_packed(*found)


@pytest.mark.parametrize("lengths", [(5, 4, 2), (2, 5, 3)], ids=["sorted", "unsorted"])
def test_packed_output_keeps_the_indices_of_its_input(plain, lengths, same):
    ours, _ = plain.twins()
    packed = pack_sequence(
        [torch.randn(length, 3, dtype=torch.float64) for length in lengths],
        enforce_sorted=lengths == (5, 4, 2),
    )
    output, _ = ours(packed)
    assert type(output) is PackedSequence
    same(output[1:], packed[1:])
    assert (output.sorted_indices is None) == (lengths == (5, 4, 2))


def test_rows_of_packed_output_are_those_of_each_sequence_alone(sequence, same):
    ours, _ = sequence.twins()
    lengths = (2, 5, 3)
    x = sequence.input()
    batch_first = sequence.options.get("batch_first", False)
    output, _ = pad_packed_sequence(ours(sequence.packed(lengths))[0], batch_first=batch_first)
    for row, length in enumerate(lengths):
        alone = x[row, :length] if batch_first else x[:length, row]
        padded = output[row] if batch_first else output[:, row]
        torch.testing.assert_close(padded[:length], ours(alone)[0])
        assert padded[length:].eq(0).all()


@pytest.mark.parametrize("length", [1, 2])
def test_short_sequences_are_taken_as_in_torch(sequence, length, same):
    ours, theirs = sequence.twins()
    x = sequence.input(length=length)
    same(ours(x), theirs(x))


def test_a_batch_of_no_rows_is_taken_as_in_torch(plain, same):
    ours, theirs = plain.twins()
    x = torch.zeros(5, 0, 3, dtype=torch.float64)
    same(ours(x), theirs(x))


def test_a_list_of_states_is_taken_as_in_torch(same):
    torch.manual_seed(0)
    ours, theirs = rnnorm.LSTM(3, 4), nn.LSTM(3, 4)
    theirs.load_state_dict(ours.state_dict())
    ours.double(), theirs.double()
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    state = [torch.randn(1, 2, 4, dtype=torch.float64) for _ in range(2)]
    same(ours(x, state), theirs(x, state))


def test_a_cell_state_of_another_type_is_taken_as_in_torch(identical):
    ours, theirs = rnnorm.LSTM(3, 4).double(), nn.LSTM(3, 4).double()
    theirs.load_state_dict(ours.state_dict())
    x, h = torch.ones(5, 2, 3, dtype=torch.float64), torch.ones(1, 2, 4, dtype=torch.float64)
    identical(ours(x, (h, h.float())), theirs(x, (h, h.float())))


def test_strided_inputs_and_states_are_taken_as_in_torch(deep, same):
    ours, theirs = deep.twins()
    x = torch.randn(3, 5, 6, dtype=torch.float64).transpose(0, 1)[..., ::2]
    state = deep.state(rows=6)
    state = tuple(part[:, ::2] for part in state) if type(state) is tuple else state[:, ::2]
    same(ours(x, state), theirs(x, state))


def test_the_given_state_is_not_written_to(plain, same):
    ours, _ = plain.twins()
    state = plain.state()
    kept = plain.state()
    ours(plain.input(), state)
    same(state, kept)


def test_dropout_draws_torchs_masks(deep, identical, gradients):
    found = []
    for layer in deep.twins(dropout=0.5):
        torch.manual_seed(4)
        result = layer(deep.input())
        found.append((result, gradients(result, list(layer.parameters()))))
    identical(*found)


def test_dropout_draws_torchs_masks_on_packed_input(deep, same_packed):
    ours, theirs = deep.twins(dropout=0.5)
    torch.manual_seed(4)
    expected = theirs(deep.packed())
    torch.manual_seed(4)
    same_packed(ours(deep.packed()), expected)


def test_dropout_rests_in_evaluation(deep, same):
    ours, theirs = deep.twins(dropout=0.5)
    same(ours.eval()(deep.input()), theirs.eval()(deep.input()))


def test_full_dropout_hides_the_input_from_the_last_layer(deep, same):
    ours, theirs = deep.twins(dropout=1.0)
    expected = theirs(deep.input(seed=1))[0]
    same(ours(deep.input(seed=1))[0], expected)
    same(ours(deep.input(seed=2))[0], expected)


@pytest.mark.usefixtures("same")
def test_dropout_zeroes_a_share_of_the_frames_between_layers_and_scales_the_rest(close):
    # a second layer that copies what it is shown
    layer = rnnorm.RNN(3, 4, 2, "relu", False, dropout=0.25, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_ih_l1.copy_(torch.eye(4))
        layer.weight_hh_l1.zero_()
    x = torch.randn(20, 50, 3, dtype=torch.float64)
    full, shown = layer.eval()(x)[0], layer.train()(x)[0]
    alive = full > 0
    kept = shown[alive] > 0
    close(shown[alive][kept], full[alive][kept] / 0.75)
    assert abs(kept.double().mean() - 0.75) < 0.03


def test_the_second_gradient_is_torchs(deep, same):
    found = []
    for layer in deep.twins():
        x = deep.input().requires_grad_()
        output, _ = layer(x)
        weights = list(layer.parameters())
        first = torch.autograd.grad(output.pow(2).sum(), [x, *weights], create_graph=True)
        norm = sum(part.pow(2).sum() for part in first)
        found.append(torch.autograd.grad(norm, [x, *weights]))
    same(*found)


def test_the_second_gradient_through_packed_input_is_torchs(plain, same_packed):
    found = []
    for layer in plain.twins():
        packed = plain.packed()
        packed = PackedSequence(packed.data.requires_grad_(), *packed[1:])
        leaves = [packed.data, *layer.parameters()]
        loss = layer(packed)[0].data.pow(2).sum()
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        found.append(torch.autograd.grad(sum(part.pow(2).sum() for part in first), leaves))
    same_packed(*found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_packed_half_types_agree_with_torch(plain, dtype):
    ours, theirs = plain.twins(dtype=dtype)
    packed = _to(plain.packed(), dtype)
    torch.testing.assert_close(ours(packed), theirs(packed), rtol=0.02, atol=0.02)
    with rnnorm.use_backend("aten"):
        torch.testing.assert_close(ours(packed), theirs(packed), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_outputs_have_torchs_dtypes(plain, dtype, tensors):
    ours, theirs = plain.twins(dtype=dtype)
    x = plain.input().to(dtype)
    expected = [part.dtype for part in tensors(theirs(x))]
    assert [part.dtype for part in tensors(ours(x))] == expected
    with rnnorm.use_backend("reference"):
        assert [part.dtype for part in tensors(ours(x))] == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_agree_with_torch(plain, dtype):
    ours, theirs = plain.twins(dtype=dtype)
    x = plain.input().to(dtype)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=0)
    with rnnorm.use_backend("reference"):
        torch.testing.assert_close(ours(x), theirs(x), rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("weights", "inputs"),
    [
        (torch.float32, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.float64, torch.float64),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", ["dense", "state", "packed", "unbatched"])
@pytest.mark.parametrize("training", [True, False])
def test_autocast_gives_torchs_dtypes(
    plain, weights, inputs, form, training, torch_dtypes, tensors, same_error
):
    ours, theirs = (layer.train(training) for layer in plain.twins(dtype=weights))
    arguments = {
        "dense": (plain.input().to(inputs),),
        "state": (plain.input().to(inputs), _to(plain.state(), inputs)),
        "packed": (_to(plain.packed(), inputs),),
        "unbatched": (plain.input(rows=None).to(inputs),),
    }[form]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, torch_runs = torch_dtypes(theirs, *arguments)
        fused = form == "packed" and not rnnorm.backends()["cpu"]
        if torch_runs or fused:
            assert [part.dtype for part in tensors(ours(*arguments))] == expected
        else:
            same_error(lambda: ours(*arguments), lambda: theirs(*arguments))
        with rnnorm.use_backend("reference"):
            assert [part.dtype for part in tensors(ours(*arguments))] == expected


def test_autocast_values_agree_with_torch(plain, torch_dtypes, same_error):
    ours, theirs = plain.twins(dtype=torch.float32)
    x = plain.input().float()
    expected = theirs(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        if torch_dtypes(theirs, x)[1]:
            torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=0)
        else:
            same_error(lambda: ours(x), lambda: theirs(x))
        with rnnorm.use_backend("reference"):
            found = ours(x)
    torch.testing.assert_close(found, expected, rtol=0.03, atol=0.03, check_dtype=False)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_nothing_is_recorded_without_gradients(plain, mode, same, tensors):
    ours, theirs = plain.twins()
    with mode():
        result = ours(plain.input())
        same(result, theirs(plain.input()))
    assert not any(part.requires_grad for part in tensors(result))


def _to(value, dtype):
    if isinstance(value, PackedSequence):
        return value.to(dtype)
    return tuple(_to(part, dtype) for part in value) if type(value) is tuple else value.to(dtype)
