"""What a layer with a norm takes: lengths, packed rows, steps, initial states; and what not."""

import copy

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import rnnorm

# torch.nn's calls know no step
pytestmark = pytest.mark.filterwarnings("ignore:hx was given without step")

LENGTHS = (2, 5, 3, 5)


@pytest.fixture(params=[None, "batch", "layer"], ids=["none", "batch", "layer"])
def any_norm(request):
    return request.param


def wide(sequence, norm, **options):
    """A layer with large weights, after one minibatch of 7 steps."""
    layer = sequence.rnnorm(norm=norm, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-0.8, 0.8)
        layer(sequence.input(rows=6, length=7, seed=8))
    return layer


def first_rows(value, rows):
    return tuple(part[:, rows] for part in value) if type(value) is tuple else value[:, rows]


def parts(value):
    return list(value) if isinstance(value, tuple) else [value]


def batch_first(sequence):
    return sequence.options.get("batch_first", False)


@pytest.mark.parametrize(("training", "with_state"), [(True, True), (False, False)])
def test_lengths_equal_a_packed_sequence(
    sequence, any_norm, training, with_state, close, gradients
):
    one = wide(sequence, any_norm)
    other = copy.deepcopy(one)
    x = sequence.input(rows=4).requires_grad_()
    state = sequence.state(rows=4) if with_state else None
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first(sequence), False)
    expected, expected_state = other.train(training)(packed, state)
    expected, _ = pad_packed_sequence(expected, batch_first(sequence))
    output, last = one.train(training)(x, state, lengths=torch.tensor(LENGTHS))
    close((output, last), (expected, expected_state))
    close(
        gradients((output, last), [x, *one.parameters()], allow_unused=True),
        gradients((expected, expected_state), [x, *other.parameters()], allow_unused=True),
    )
    close(list(one.buffers()), list(other.buffers()))


def test_lengths_equal_each_row_alone_in_evaluation(sequence, any_norm, close):
    layer = wide(sequence, any_norm).eval()
    x, state = sequence.input(rows=4), sequence.state(rows=4)
    output, last = layer(x, state, lengths=torch.tensor(LENGTHS))
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first(sequence), False)
    packed_output, packed_last = layer(packed, state)
    close(pad_packed_sequence(packed_output, batch_first(sequence))[0], output)
    close(packed_last, last)
    for row, length in enumerate(LENGTHS):
        mine = x[row, :length] if batch_first(sequence) else x[:length, row]
        found = output[row] if batch_first(sequence) else output[:, row]
        alone, alone_last = layer(mine, first_rows(state, row))
        close(found[:length], alone)
        close(first_rows(last, row), alone_last)
        assert found[length:].eq(0).all()


def test_full_lengths_equal_none(deep, any_norm, close):
    layer = wide(deep, any_norm).eval()
    x = deep.input()
    close(layer(x, lengths=torch.tensor([5, 5, 5])), layer(x))


def test_output_is_as_long_as_the_input(deep, any_norm):
    output, _ = wide(deep, any_norm)(deep.input(length=9), lengths=torch.tensor([4, 2, 4]))
    assert output.shape[:2] == (9, 3)
    assert output[4:].eq(0).all()


@pytest.mark.parametrize("kind", [list, tuple, torch.tensor, torch.int32, torch.uint16])
def test_lengths_are_taken_in_every_integer_form(plain, any_norm, kind, identical):
    layer = wide(plain, any_norm).eval()
    x, lengths = plain.input(rows=4), torch.tensor(LENGTHS)
    given = lengths.to(kind) if isinstance(kind, torch.dtype) else kind(LENGTHS)
    identical(layer(x, lengths=given), layer(x, lengths=lengths))


def test_padding_is_not_read(deep, any_norm, identical):
    x, lengths = deep.input(rows=4), torch.tensor(LENGTHS)
    dirty = x.clone()
    for row, length in enumerate(LENGTHS):
        dirty[length:, row] = float("nan")
    found = []
    for padded in (x, dirty):
        layer = wide(deep, any_norm)
        output, last = layer(padded, lengths=lengths)
        (output.pow(2).sum() + sum(part.sum() for part in parts(last))).backward()
        found.append((output, last, [p.grad for p in layer.parameters()], list(layer.buffers())))
    identical(*found)


@pytest.mark.parametrize("plain", ["GRU"], indirect=True)
@pytest.mark.parametrize("lengths", [(0, 5, 5), (-1, 5, 5), (5, 6, 5), (5, 5), (5, 5, 5, 5), ()])
def test_lengths_out_of_range_are_runtime_errors(plain, any_norm, lengths):
    layer = wide(plain, any_norm)
    before = [buffer.clone() for buffer in layer.buffers()]
    with pytest.raises(RuntimeError, match="lengths"):
        layer(plain.input(), lengths=torch.tensor(lengths, dtype=torch.int64))
    assert all(torch.equal(a, b) for a, b in zip(before, layer.buffers(), strict=True))


@pytest.mark.parametrize("plain", ["GRU"], indirect=True)
@pytest.mark.parametrize(
    "lengths", [torch.tensor([5.0, 5.0, 5.0]), torch.ones(3, dtype=torch.bool), 5], ids=repr
)
def test_lengths_that_are_no_integers_are_errors(plain, any_norm, lengths):
    with pytest.raises((TypeError, RuntimeError, ValueError), match="lengths"):
        wide(plain, any_norm)(plain.input(), lengths=lengths)


@pytest.mark.parametrize("plain", ["GRU"], indirect=True)
@pytest.mark.parametrize("sizes", [(2, 3, 1), (1, 5), (3, 0, 3)], ids=str)
def test_packed_rows_that_grow_are_refused(plain, any_norm, sizes):
    packed = PackedSequence(plain.input(rows=1, length=6)[:, 0], torch.tensor(sizes))
    with pytest.raises(RuntimeError):
        wide(plain, any_norm).eval()(packed)


@pytest.mark.parametrize("plain", ["GRU"], indirect=True)
@pytest.mark.parametrize("sizes", [(2, 3, 1), (3, 0, 3), (3, 2), (3, 3, 1), (3, 3, 1, -1)], ids=str)
def test_batch_sizes_must_fall_and_sum_to_the_frames(plain, norm, sizes):
    packed = PackedSequence(plain.input(rows=1, length=6)[:, 0], torch.tensor(sizes))
    with pytest.raises(RuntimeError, match="begin with all rows, not grow, and sum to its 6 frame"):
        wide(plain, norm).eval()(packed)


def test_packed_rows_that_begin_with_fewer_than_all_are_refused(plain, any_norm):
    order = torch.arange(3)
    packed = PackedSequence(plain.input(rows=1, length=3)[:, 0], torch.tensor([2, 1]), order, order)
    with pytest.raises(RuntimeError):
        wide(plain, any_norm).eval()(packed)


def test_packed_rows_are_counted_in_int64(plain, any_norm):
    packed = PackedSequence(plain.input(rows=1, length=6)[:, 0], torch.tensor([3, 3]).int())
    with pytest.raises(RuntimeError, match=r"Int|int"):
        wide(plain, any_norm).eval()(packed)


def test_lengths_with_packed_or_unbatched_input_are_value_errors(plain, any_norm):
    layer = wide(plain, any_norm).eval()
    with pytest.raises(ValueError, match=r"lengths.*PackedSequence"):
        layer(plain.packed(), lengths=torch.tensor([2, 5, 3]))
    with pytest.raises(ValueError, match="lengths"):
        layer(plain.input(rows=None), lengths=torch.tensor([5]))


def test_empty_sequences_fail_as_in_torch(plain, norm, same_error):
    layer, theirs = plain.rnnorm(norm=norm), plain.torch()
    x = torch.zeros(0, 3, 3, dtype=torch.float64)
    same_error(lambda: layer(x), lambda: theirs(x))


def test_wrong_inputs_fail_as_in_torch(plain, norm, same_error):
    layer, theirs = plain.rnnorm(norm=norm), plain.torch()
    for shape in [(3,), (5, 2, 3, 1), (5, 2, 4), (5, 4)]:
        x = torch.zeros(shape, dtype=torch.float64)
        same_error(lambda: layer(x), lambda: theirs(x))  # noqa: B023
    x = torch.zeros(5, 2, 3)
    same_error(lambda: layer(x), lambda: theirs(x))


def test_wrong_states_fail_as_in_torch(deep, norm, same_error):
    layer, theirs = deep.rnnorm(norm=norm), deep.torch()
    x = deep.input()
    for state in (deep.state(2), first_rows(deep.state(), 0), _map(deep.state(), lambda s: s[:2])):
        same_error(lambda: layer(x, state), lambda: theirs(x, state))  # noqa: B023
    with pytest.raises((RuntimeError, ValueError), match="dtype"):
        layer(x, _map(deep.state(), torch.Tensor.float))


def test_failed_calls_leave_no_statistics(plain):
    layer = plain.rnnorm(norm="batch")
    before = copy.deepcopy(layer.state_dict())
    for x, options in [
        (plain.input(rows=1), {}),
        (plain.input(), {"step": -1}),
        (plain.input(), {"hx": plain.state(2)}),
        (plain.input(), {"lengths": torch.tensor([0, 1, 2])}),
    ]:
        with pytest.raises((RuntimeError, ValueError)):
            layer(x, **options)
    after = layer.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_one_row_in_training_is_an_error(sequence):
    layer = sequence.rnnorm(norm="batch")
    with pytest.raises(ValueError, match="row"):
        layer(sequence.input(rows=1))
    with pytest.raises(ValueError, match="row"):
        layer(sequence.input(rows=None))


def test_one_row_is_enough_in_evaluation_and_for_layer_norm(sequence, close):
    layer = wide(sequence, "batch").eval()
    row = 0 if batch_first(sequence) else 1
    close(layer(sequence.input(rows=1))[0].squeeze(row), layer(sequence.input(rows=None))[0])
    layer = sequence.rnnorm(norm="layer")
    assert layer(sequence.input(rows=1))[0].isfinite().all()


def test_two_rows_are_enough_in_training_whatever_min_rows_is(plain):
    layer = plain.rnnorm(norm=rnnorm.BatchNorm(min_rows=100))
    with pytest.raises(ValueError, match="at least 2 active rows at step 0 in training, got 1"):
        layer(plain.input(rows=1))
    layer(plain.input(rows=2))
    assert (layer.population_recurrent_l0.rows == 2).all()


@pytest.mark.parametrize("plain", ["GRU"], indirect=True)
@pytest.mark.parametrize("step", [-1, -5])
def test_a_negative_step_is_a_value_error(plain, any_norm, step):
    with pytest.raises(ValueError, match=f"step must .*{step}"):
        wide(plain, any_norm)(plain.input(), step=step)


@pytest.mark.parametrize("plain", ["GRU"], indirect=True)
@pytest.mark.parametrize(
    "step", [1.0, "1", True, torch.tensor([1.0, 0.0, 2.0]), np.array([1, 0, 2])], ids=repr
)
def test_a_step_that_is_no_integer_is_a_type_error(plain, any_norm, step):
    with pytest.raises(TypeError, match="step"):
        wide(plain, any_norm).eval()(plain.input(), step=step)


def test_a_step_of_numpy_is_an_int(plain, any_norm):
    layer, x = wide(plain, any_norm).eval(), plain.input()
    (one, *_), (two, *_) = (layer(x, step=step) for step in (2, np.int32(2)))
    assert torch.equal(one, two)


def test_a_tensor_of_steps_is_a_value_error_where_statistics_are_taken(plain):
    with pytest.raises(ValueError, match=r"step must .*training"):
        wide(plain, "batch")(plain.input(), step=torch.tensor([0, 1, 2]))


@pytest.mark.parametrize("shape", [(2,), (4,), (3, 1), ()], ids=str)
def test_steps_of_a_wrong_shape_are_errors(plain, norm, shape):
    with pytest.raises((RuntimeError, ValueError), match="step"):
        wide(plain, norm).eval()(plain.input(), step=torch.zeros(shape, dtype=torch.int64))


def test_negative_steps_in_a_tensor_are_errors(plain, norm):
    with pytest.raises(ValueError, match="step"):
        wide(plain, norm).eval()(plain.input(), step=torch.tensor([0, -1, 2]))


def test_a_step_with_two_directions_is_a_value_error(deep, any_norm):
    layer = wide(deep, any_norm)
    with pytest.raises(ValueError, match="step must be 0 with bidirectional"):
        layer(deep.input(), step=1)
    with pytest.raises(ValueError, match="step must be 0 with bidirectional"):
        layer.eval()(deep.input(), step=torch.tensor([0, 1, 0]))
    layer(deep.input(), step=0)


def test_a_step_without_batch_norm_changes_nothing(plain, identical):
    for norm in (None, "layer"):
        layer = wide(plain, norm)
        identical(layer(plain.input(), step=3), layer(plain.input()))


@pytest.mark.parametrize("pieces", [(5, 2), (1, 1, 5), (3, 4), (6, 1)], ids=str)
def test_pieces_equal_one_pass_in_evaluation(plain, any_norm, pieces, close):
    layer = wide(plain, any_norm, num_layers=2).eval()
    x = plain.input(length=7)
    state, step, outputs = None, 0, []
    for piece in x.split(pieces):
        output, state = layer(piece, state, step=step)
        step += len(piece)
        outputs.append(output)
    close((torch.cat(outputs), state), layer(x))


def test_rows_stand_at_steps_of_their_own_in_evaluation(plain, close):
    layer = wide(plain, "batch", num_layers=2).eval()
    x, steps = plain.input(rows=4), torch.tensor([3, 0, 9, 1])
    for lengths in (None, torch.tensor(LENGTHS)):
        output, last = layer(x, lengths=lengths, step=steps)
        for row, step in enumerate(steps.tolist()):
            length = 5 if lengths is None else LENGTHS[row]
            alone, alone_last = layer(x[:length, row], step=step)
            close(output[:length, row], alone)
            close(first_rows(last, row), alone_last)


def test_rows_of_a_packed_sequence_stand_at_steps_of_their_own(plain, close):
    layer = wide(plain, "batch").eval()
    x, steps = plain.input(rows=4), torch.tensor([3, 0, 9, 1])
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), enforce_sorted=False)
    output, last = layer(packed, step=steps)
    expected, expected_last = layer(x, lengths=torch.tensor(LENGTHS), step=steps)
    close((pad_packed_sequence(output)[0], last), (expected, expected_last))


def test_training_at_a_step_takes_the_statistics_of_that_step(plain, identical):
    layer = plain.rnnorm(norm="batch")
    layer(plain.input(), step=2)
    population = layer.population_input_l0
    assert population.num_batches_tracked.tolist() == [0, 0, 1, 1, 1, 1, 1]
    other = plain.rnnorm(norm="batch")
    other(plain.input())
    identical(population.mean[2:], other.population_input_l0.mean)


def test_learned_initial_states_have_torchs_names_and_shapes(sequence):
    layer = sequence.rnnorm(norm="batch", learn_initial_state=True)
    count = sequence.options.get("num_layers", 1) * (1 + sequence.options.get("bidirectional", 0))
    expected = {"h_0": (count, sequence.options.get("proj_size", 4))}
    if sequence.name == "LSTM":
        expected["c_0"] = (count, 4)
    found = {name: p.shape for name, p in layer.named_parameters() if name.endswith("_0")}
    assert found == expected
    plain_names = set(sequence.rnnorm(norm="batch").state_dict())
    assert set(layer.state_dict()) - plain_names == set(expected)


def test_a_fresh_learned_initial_state_is_zero(sequence, close):
    learned = sequence.rnnorm(norm="batch", learn_initial_state=True)
    close(learned(sequence.input()), sequence.rnnorm(norm="batch")(sequence.input()))


def test_torchs_own_operators_get_learned_states_that_are_contiguous(deep, monkeypatch):
    # cuDNN takes no others
    layer, given = deep.rnnorm(learn_initial_state=True), []
    run = layer.torch_class.forward

    def forward(self, input, hx):
        given.extend(hx if isinstance(hx, tuple) else (hx,))
        return run(self, input, hx)

    monkeypatch.setattr(layer.torch_class, "forward", forward)
    layer(deep.input())
    assert given
    assert all(state.is_contiguous() for state in given)


@pytest.mark.parametrize("form", ["dense", "unbatched", "packed", "lengths"])
def test_a_learned_initial_state_stands_in_every_row(sequence, any_norm, form, close):
    layer = wide(sequence, any_norm, learn_initial_state=True).eval()
    learned = [layer.h_0, layer.c_0] if sequence.name == "LSTM" else [layer.h_0]
    rows = None if form == "unbatched" else 3
    states = [s if rows is None else s[:, None].expand(-1, 3, -1) for s in learned]
    hx = tuple(states) if len(states) > 1 else states[0]
    x = sequence.packed() if form == "packed" else sequence.input(rows)
    options = {"lengths": torch.tensor([2, 5, 3])} if form == "lengths" else {}
    close(layer(x, **options), layer(x, hx, **options))


def test_a_learned_initial_state_gets_a_gradient_only_where_none_is_given(deep, any_norm):
    layer = deep.rnnorm(norm=any_norm, learn_initial_state=True)
    layer(deep.input(), deep.state())[0].sum().backward()
    assert layer.h_0.grad is None
    layer(deep.input())[0].pow(2).sum().backward()
    assert layer.h_0.grad.abs().sum() > 0
    if deep.name == "LSTM":
        assert layer.c_0.grad.abs().sum() > 0


def test_learned_initial_states_follow_dtype_and_device(plain, any_norm):
    layer = plain.rnnorm(norm=any_norm, learn_initial_state=True, dtype=torch.bfloat16)
    assert layer.h_0.dtype == torch.bfloat16
    layer = plain.rnnorm(norm=any_norm, learn_initial_state=True, device="meta")
    assert layer.h_0.device.type == "meta"


def test_reset_parameters_puts_learned_initial_states_back_to_zero(plain, any_norm):
    layer = wide(plain, any_norm, learn_initial_state=True)
    layer.reset_parameters()
    assert layer.h_0.eq(0).all()


@pytest.mark.parametrize("wrong", [1, None, ("from_input",)])
def test_learn_initial_state_must_be_a_bool_or_a_word(plain, wrong):
    with pytest.raises(TypeError, match="learn_initial_state"):
        plain.rnnorm(learn_initial_state=wrong)


def test_initial_noise_has_its_standard_deviation():
    # a layer whose h_1 is tanh(h_0)
    layer = rnnorm.RNN(1, 4, bias=False, initial_noise=0.5, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_ih_l0.zero_()
        layer.weight_hh_l0.copy_(torch.eye(4))
    _, h_n = layer(torch.zeros(1, 20_000, 1, dtype=torch.float64))
    h_0 = torch.atanh(h_n)
    assert abs(h_0.std() - 0.5) < 0.01
    assert abs(h_0.mean()) < 0.01


def test_initial_noise_is_not_on_c(any_norm):
    layer = rnnorm.LSTM(1, 4, initial_noise=0.5, norm=any_norm, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    # every gate is 1/2 and the candidate 0, so that c_1 is half of c_0
    _, (_, c_n) = layer(torch.zeros(1, 5, 1, dtype=torch.float64))
    assert c_n.eq(0).all()


def test_initial_noise_is_drawn_anew_in_training_and_rests_in_evaluation(deep, any_norm, identical):
    layer, quiet = (wide(deep, any_norm, initial_noise=noise) for noise in (0.3, 0.0))
    x = deep.input()
    assert not torch.equal(layer(x)[0], layer(x)[0])
    quiet.load_state_dict(layer.state_dict())
    identical(layer.eval()(x), quiet.eval()(x))


def test_initial_noise_follows_the_seed(deep, any_norm, identical):
    found = []
    for _ in range(2):
        layer = wide(deep, any_norm, initial_noise=0.3)
        torch.manual_seed(6)
        found.append(layer(deep.packed()))
    identical(*found)


def test_initial_noise_leaves_a_given_state_alone(deep, any_norm, identical):
    noisy, quiet = (wide(deep, any_norm, initial_noise=noise) for noise in (0.3, 0.0))
    quiet.load_state_dict(noisy.state_dict())
    x, state = deep.input(), deep.state()
    identical(noisy(x, state), quiet(x, state))


def test_initial_noise_is_added_to_a_learned_state(plain, any_norm):
    layer = plain.rnnorm(norm=any_norm, learn_initial_state=True, initial_noise=0.3)
    output, _ = layer(plain.input())
    output.pow(2).sum().backward()
    assert layer.h_0.grad.abs().sum() > 0
    assert not torch.equal(layer(plain.input())[0], output)


@pytest.mark.parametrize("wrong", [-0.1, float("nan"), float("inf")])
def test_initial_noise_must_be_a_standard_deviation(plain, wrong):
    with pytest.raises(ValueError, match="initial_noise"):
        plain.rnnorm(initial_noise=wrong)


@pytest.mark.parametrize("wrong", ["0.1", True])
def test_initial_noise_must_be_a_number(plain, wrong):
    with pytest.raises(TypeError):
        plain.rnnorm(initial_noise=wrong)


@pytest.mark.parametrize("norm", ["batch", "bn-e*", "joint"])
def test_batch_norm_in_the_recurrence_has_initial_noise_by_default(norm):
    layer = rnnorm.LSTM(3, 4, norm=norm)
    assert layer.initial_noise == 0.1
    assert "initial_noise" not in repr(layer)
    assert "initial_noise=0.0" in repr(rnnorm.LSTM(3, 4, norm=norm, initial_noise=0.0))


@pytest.mark.parametrize("norm", [None, "layer", "laurent2015-frame", "laurent2015-sequence"])
def test_nothing_else_has(norm):
    layer = rnnorm.LSTM(3, 4, norm=norm)
    assert layer.initial_noise == 0.0
    assert "initial_noise=0.1" in repr(rnnorm.LSTM(3, 4, norm=norm, initial_noise=0.1))


def _map(state, change):
    return tuple(change(part) for part in state) if type(state) is tuple else change(state)
