"""Law 3: a step with fewer than `min_rows` active rows takes no statistic."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from cases import (
    TORCH,
    Case,
    any_case,
    assert_all_close,
    assert_close,
    buffers,
    gradients,
    law,
    run,
    tuple_of,
)
from hypothesis import given
from hypothesis import strategies as st

import definition
from rnnorm import (
    LSTM,
    BatchNorm,
    GRUCell,
    LSTMCell,
    RNNCell,
    freeze,
    update_bn,
    use_backend,
)

INPUT_ONLY = {"recurrent": None, "cell": None}


@law(60)
@given(any_case(given_state=True), st.integers(2, 5), st.integers(1, 4))
def test_a_tail_of_few_rows_equals_the_definition(case, longest, others):
    case = case.__class__(
        **{**vars(case), "lengths": (longest + 2, *[others] * (len(case.lengths) - 1))}
    )
    module, sequences, hx = case.module(), case.sequences(), case.hx()
    want = definition.network(module, case.norm, sequences, hx)
    outputs, states = run(module, sequences, hx)
    assert_all_close(outputs, want.outputs)
    assert_all_close(states, want.states)
    assert_all_close(
        gradients(module, sequences, hx, outputs, states),
        gradients(module, sequences, hx, want.outputs, want.states),
        1e-7,
    )


def test_a_step_of_few_rows_uses_the_last_good_step_as_constants():
    case = Case("RNN_TANH", BatchNorm(**INPUT_ONLY), lengths=(3, 1, 1, 1))
    module, sequences = case.module(), case.sequences()
    with torch.no_grad():
        module.weight_hh_l0.zero_()
    outputs, _ = run(module, sequences)
    first = torch.stack([s[0] for s in sequences]) @ module.weight_ih_l0.T
    mean, var = first.mean(0).detach(), first.var(0, unbiased=False).detach()
    late = (sequences[0][1:] @ module.weight_ih_l0.T - mean) / (var + case.norm.eps).sqrt()
    want = torch.tanh(module.gamma_input_l0 * late + module.bias_ih_l0 + module.bias_hh_l0)
    assert_close("late output", outputs[0][1:], want)
    # the first frames enter the late outputs through the statistics alone: no gradient
    got = torch.autograd.grad(outputs[0][1:].sum(), sequences, allow_unused=True)
    assert (got[0][0] == 0).all()
    assert (got[0][1:] != 0).any()
    assert all(g is None or (g == 0).all() for g in got[1:])


@pytest.mark.parametrize("cell", ["RNN_TANH", "LSTM", "GRU"])
@pytest.mark.parametrize("min_rows", [2, 3, 4])
def test_rows_below_min_rows_take_no_statistic(cell, min_rows):
    case = Case(cell, BatchNorm(min_rows=min_rows), lengths=(5, 5, 3, 2, 3, 1), bidirectional=True)
    module, sequences, hx = case.module(), case.sequences(), case.hx()
    want = definition.network(module, case.norm, sequences, hx)
    outputs, states = run(module, sequences, hx)
    assert_all_close(outputs, want.outputs)
    assert_all_close(
        gradients(module, sequences, hx, outputs, states),
        gradients(module, sequences, hx, want.outputs, want.states),
        1e-7,
    )


@pytest.mark.parametrize("cell", ["RNN_TANH", "LSTM", "GRU"])
@pytest.mark.parametrize("lengths", [(3, 3), (4, 4, 4, 2, 1), (3,) * 7 + (1,), (3,) * 8 + (1, 2)])
def test_a_minibatch_below_min_rows_trains_until_one_of_its_rows_ends(cell, lengths):
    case = Case(cell, BatchNorm(), lengths)
    module, sequences, hx = case.module(), case.sequences(), case.hx()
    want = definition.network(module, case.norm, sequences, hx)
    outputs, states = run(module, sequences, hx)
    assert_all_close(outputs, want.outputs)
    assert_all_close(
        gradients(module, sequences, hx, outputs, states),
        gradients(module, sequences, hx, want.outputs, want.states),
        1e-7,
    )
    active = [sum(n > t for n in lengths) for t in range(max(lengths))]
    counts = [n if n >= min(8, len(lengths)) else 0 for n in active]
    assert module.population_recurrent_l0.rows.tolist() == counts


def test_a_tail_of_few_rows_keeps_the_gradient_small_by_default():
    # statistics of three rows over 60 steps let it grow to about 1e6
    sizes = {}
    for min_rows in (2, BatchNorm().min_rows):
        torch.manual_seed(0)
        module = LSTM(8, 32, norm=BatchNorm(min_rows=min_rows), initial_noise=0.0).double()
        x, lengths = torch.randn(80, 32, 8).double(), torch.tensor([80] * 3 + [20] * 29)
        module(x, lengths=lengths)[1][0].sum().backward()
        sizes[min_rows] = module.weight_hh_l0.grad.norm().item()
    assert sizes[8] < 1e2 < 1e-2 * sizes[2]


@pytest.mark.parametrize("min_rows", [2, 3, 4])
def test_min_rows_is_the_fewest_that_a_statistic_needs(min_rows):
    case = Case("GRU", BatchNorm(min_rows=min_rows), lengths=(4, 3, 2, 1))
    module = case.module()
    run(module, case.sequences())
    want = [n if n >= min_rows else 0 for n in (4, 3, 2, 1)]
    for population in module.children():
        assert population.rows.tolist()[:4] == want
        assert population.num_batches_tracked.tolist()[:4] == [int(n > 0) for n in want]


@pytest.mark.parametrize("cell", ["RNN_TANH", "LSTM", "GRU"])
@pytest.mark.parametrize("lengths", [(3,), (1,)])
def test_a_batch_of_one_row_raises_before_any_statistic(cell, lengths):
    case = Case(cell, BatchNorm(), lengths)
    module = case.module()
    before = buffers(module)
    with pytest.raises(ValueError, match=r"(?i)row"):
        run(module, case.sequences())
    after = buffers(module)
    assert all(not after[name].any() for name in after if name.endswith("rows"))
    assert before.keys() == after.keys()


SERVED = "ignore:norm.*expected at least 2 active"
# a module of one that takes no part in the first step asks for its statistics later
ONE_ROW = [*TORCH, "LiGRU", "ClockworkRNN"]


@pytest.mark.parametrize("backend", [None, "reference"])
@pytest.mark.parametrize("step", [0, 2])
@pytest.mark.parametrize(
    "norm", [BatchNorm(), BatchNorm(population="shared"), BatchNorm(input=None)]
)
@pytest.mark.parametrize("cell", ONE_ROW)
@pytest.mark.filterwarnings(SERVED)
def test_after_training_a_batch_of_one_row_is_served_as_in_evaluation(cell, norm, step, backend):
    case = Case(cell, norm, bidirectional=step == 0)
    module = case.module()
    run(module, case.sequences(), case.hx())
    before, one = buffers(module), replace(case, lengths=(9,), seed=7)

    def results():
        sequences, hx = one.sequences(), one.hx()
        with use_backend(backend) if backend else nullcontext():
            outputs, states = run(module, sequences, hx, step=step)
        return outputs, states, gradients(module, sequences, hx, outputs, states)

    found = results()
    assert_all_close(buffers(module), before, 0)
    module.eval()
    for got, want in zip(found, results(), strict=True):
        assert_all_close(got, want)


def test_it_is_said_once_that_one_row_was_served_and_what_to_do():
    case = Case(norm=BatchNorm(), num_layers=2)
    module = case.module()
    run(module, case.sequences())
    with pytest.warns(UserWarning, match="got 1: .*as in evaluation.*drop_last.*layer") as said:
        run(module, case.sequences()[:1])
    assert len(said) == 1
    assert said[0].filename.endswith("cases.py")
    run(module, case.sequences()[:1])


@pytest.mark.parametrize("cell", [RNNCell, LSTMCell, GRUCell])
def test_a_cell_serves_one_row_as_in_evaluation(cell):
    module, x = cell(3, 4, norm="batch"), torch.randn(5, 3)
    with pytest.raises(ValueError, match="expected at least 2 active rows at step 0 in training"):
        module(x[:1])
    module(x)
    before = buffers(module)
    # late in a sequence few rows are left of many
    late = module(x[:1], step=3)
    with pytest.warns(UserWarning, match="as in evaluation"):
        got = module(x[:1])
    assert_all_close(buffers(module), before, 0)
    assert_all_close(tuple_of(got), tuple_of(module.eval()(x[:1], step=0)))
    assert_all_close(tuple_of(late), tuple_of(module(x[:1], step=3)))


@pytest.mark.parametrize("cell", ["RNN_TANH", "LSTM", "GRU", "ClockworkRNN"])
@pytest.mark.filterwarnings("ignore:evaluation before any statistic")
def test_without_gradients_one_row_passes_before_any_statistic(cell):
    """As where a container finds out a layer's sizes."""
    case = Case(cell, BatchNorm(), lengths=(5,))
    module = case.module()
    before = buffers(module)
    with torch.no_grad():
        with pytest.warns(UserWarning, match="got 1: mean and variance are 0 and 1.*drop_last"):
            found = run(module, case.sequences(), case.hx())
        run(module, case.sequences(), case.hx())
        assert_all_close(buffers(module), before, 0)
        for got, want in zip(found, run(module.eval(), case.sequences(), case.hx()), strict=True):
            assert_all_close(got, want)
    module.train()
    # later it is another matter
    run(module, replace(case, lengths=(4, 4)).sequences())
    with pytest.warns(UserWarning, match="as in evaluation"):
        run(module, case.sequences(), case.hx())


def test_a_frozen_copy_refuses_one_row_in_training_too():
    case = Case(norm=BatchNorm())
    module = case.module()
    run(module, case.sequences())
    with pytest.raises(RuntimeError, match="a frozen model cannot train"):
        run(freeze(module).train(), case.sequences()[:1])


@pytest.mark.filterwarnings(SERVED)
def test_update_bn_passes_over_a_minibatch_of_one_row():
    module, x = LSTM(3, 4, norm="batch", initial_noise=0.0), torch.randn(6, 9, 3)
    update_bn([x[:, :4], x[:, 4:8]], module)
    want = buffers(module)
    update_bn([x[:, :4], x[:, 4:8], x[:, 8:]], module)
    assert_all_close(buffers(module), want, 0)
    with pytest.raises(ValueError, match="loader must have a minibatch of at least two rows"):
        update_bn([x[:, :1], x[:, 1:2]], module)
    assert_all_close(buffers(module), want, 0)


def test_one_frame_is_too_few_for_the_sequence_scope():
    norm = BatchNorm(input="sequence", recurrent=None, cell=None)
    module, frame = Case(norm=norm).module(), Case(lengths=(1,)).sequences()
    with pytest.raises(ValueError, match=r"expected at least 2 active frames"):
        run(module, frame)
    run(module, Case().sequences())
    with pytest.warns(UserWarning, match="at least 2 active frames .*as in evaluation"):
        outputs, _ = run(module, frame)
    assert_all_close(outputs, run(module.eval(), frame)[0])


def test_one_row_of_many_frames_is_enough_for_the_sequence_scope():
    case = Case(norm=BatchNorm(input="sequence", recurrent=None, cell=None), lengths=(5,))
    module, sequences, hx = case.module(), case.sequences(), case.hx()
    want = definition.network(module, case.norm, sequences, hx)
    assert_all_close(run(module, sequences, hx)[0], want.outputs)


@law(20)
@given(
    any_case(bidirectional=False, population="per_step", horizon=None, given_state=True),
    st.integers(1, 7),
)
@pytest.mark.filterwarnings(SERVED)
def test_a_later_window_of_one_row_uses_the_row_that_serves_it(case, step):
    module = case.module()
    run(module, case.sequences(), case.hx())
    few = case.__class__(**{**vars(case), "lengths": (3,), "seed": case.seed + 9})
    sequences, hx = few.sequences(), few.hx()
    before = buffers(module)
    want = definition.network(module, case.norm, sequences, hx, step)
    outputs, states = run(module, sequences, hx, step=step)
    assert_all_close(outputs, want.outputs)
    assert_all_close(states, want.states)
    assert_all_close(
        gradients(module, sequences, hx, outputs, states),
        gradients(module, sequences, hx, want.outputs, want.states),
        1e-7,
    )
    if case.norm.input != "sequence":
        after = buffers(module)
        for name, buffer in before.items():
            assert (after[name][: len(buffer)] == buffer).all(), name


def test_a_later_window_of_few_rows_raises_before_any_statistic():
    case = Case(norm=BatchNorm(), lengths=(3,))
    with pytest.raises(ValueError, match=r"(?i)row"):
        run(case.module(), case.sequences(), step=4)


def test_evaluation_needs_no_rows():
    case = Case(norm=BatchNorm(), lengths=(3, 2))
    module = case.module()
    run(module, case.sequences())
    module.eval()
    outputs, _ = run(module, case.sequences()[:1])
    assert_all_close(outputs, run(module, case.sequences())[0][:1])


@pytest.mark.parametrize(("min_rows", "explodes"), [(2, True), (8, False)])
def test_a_long_tail_of_lengths_trains_by_default(min_rows, explodes):
    """32 to 388 steps, evenly on a log scale, as recordings of devices have them."""
    torch.manual_seed(0)
    lengths = torch.logspace(5, 8.6, 32, base=2).long()
    lstm = LSTM(4, 32, norm=BatchNorm(min_rows=min_rows))
    optimizer = torch.optim.Adam(lstm.parameters(), 5e-3)
    largest = 0.0
    for _ in range(5):
        x = torch.randn(int(lengths.max()), 32, 4)
        output, (h_n, _) = lstm(x, lengths=lengths)
        loss = (h_n[0].sum(1) - x[0].sum(1)).square().mean() + output.square().mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(lstm.parameters(), float("inf"))
        largest = max(largest, norm.item())
        optimizer.step()
    assert (largest > 1e6) == explodes
    assert BatchNorm().min_rows == 8
