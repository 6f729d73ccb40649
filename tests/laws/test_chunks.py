"""Law 8: in evaluation a sequence fed in pieces, with `hx` and `step`, gives one call's values."""

from itertools import pairwise

import pytest
import torch
from cases import Case, any_case, assert_all_close, law, run, run_padded, single, trained, tuple_of
from hypothesis import given
from hypothesis import strategies as st

import definition
import rnnorm
from rnnorm import BatchNorm, LayerNorm


def pieces_of(case, sequences, cuts):
    """Where a list of sequences is cut: first frame, the rows that are alive, their pieces."""
    edges = [0, *sorted(cuts), max(case.lengths)]
    for start, end in pairwise(edges):
        alive = [b for b, sequence in enumerate(sequences) if len(sequence) > start]
        if start < end:
            yield start, alive, [sequences[b][start:end] for b in alive]


@law(40)
@given(any_case(norms="any", bidirectional=False), st.sets(st.integers(1, 4)), st.booleans())
def test_chunks_equal_one_pass(case, cuts, padded):
    module = trained(case)
    sequences, hx = case.sequences(), case.hx()
    hx = hx or definition.initial_state(module, len(sequences), torch.float64)
    want, want_states = run(module, sequences, hx)
    cuts = {cut for cut in cuts if cut < max(case.lengths)}
    outputs = [[] for _ in sequences]
    states = [part.clone() for part in hx]
    for start, alive, pieces in pieces_of(case, sequences, cuts):
        before = tuple(part[:, alive] for part in states)
        found, after = (run_padded if padded else run)(module, pieces, before, step=start)
        for b, rows in zip(alive, found, strict=True):
            outputs[b].append(rows)
        for part, new in zip(states, after, strict=True):
            part[:, alive] = new
    assert_all_close([torch.cat(rows) for rows in outputs], want)
    assert_all_close(states, want_states)


@law(40)
@given(any_case(norms="any", bidirectional=False), st.data())
def test_rows_of_different_ages_run_together(case, data):
    module = trained(case)
    sequences, hx = case.sequences(), case.hx()
    hx = hx or definition.initial_state(module, len(sequences), torch.float64)
    want, want_states = run(module, sequences, hx)
    ages = [data.draw(st.integers(0, n - 1)) for n in case.lengths]
    states = [part.clone() for part in hx]
    for b, age in enumerate(ages):
        if age:
            alone = tuple(part[:, b : b + 1] for part in hx)
            _, after = run(module, [sequences[b][:age]], alone)
            for part, new in zip(states, after, strict=True):
                part[:, b : b + 1] = new
    rest = [sequence[age:] for sequence, age in zip(sequences, ages, strict=True)]
    for how in (run, run_padded):
        outputs, after = how(module, rest, tuple(states), step=torch.tensor(ages))
        assert_all_close(outputs, [o[age:] for o, age in zip(want, ages, strict=True)])
        assert_all_close(after, want_states)


@pytest.mark.parametrize("norm", [BatchNorm(), LayerNorm(), None])
def test_a_dense_batch_and_one_unbatched_sequence_take_a_step_too(norm):
    case = Case(norm=norm, lengths=(5, 5, 5))
    module = trained(case)
    x = torch.stack(case.sequences(), 1)
    whole, _ = module(x, case.hx(), step=0)
    _, state = module(x[:2], case.hx(), step=0)
    rest, _ = module(x[2:], state, step=2)
    aged, _ = module(x[2:], state, step=torch.tensor([2, 2, 2]))
    one, _ = module(x[2:, 1], tuple(part[:, 1] for part in state), step=2)
    assert_all_close([rest, aged, one], [whole[2:], whole[2:], whole[2:, 1]])


def test_a_step_in_training_says_where_the_statistics_go():
    case = Case(norm=BatchNorm(), lengths=(3, 3, 3))
    module = case.module()
    run(module, case.sequences(), case.hx(), step=2)
    statistics = definition.network(module, case.norm, case.sequences(), case.hx(), 2).statistics
    for name, taken in statistics.items():
        population = module.get_submodule(f"population_{name}")
        assert population.rows.tolist() == [0, 0, 3, 3, 3]
        assert_all_close(population.mean[2:], [s.mean for s in taken])


@pytest.mark.parametrize("norm", [BatchNorm(), None])
def test_a_step_in_both_directions_is_an_error(norm):
    case = Case(norm=norm, bidirectional=True)
    module = trained(case)
    for step in (3, torch.tensor([0, 1, 0, 2])):
        with pytest.raises(ValueError, match=r"(?i)step.*bidirectional|bidirectional.*step"):
            run(module, case.sequences(), case.hx(), step=step)
    run(module, case.sequences(), case.hx(), step=0)


@pytest.mark.parametrize("step", [-1, torch.tensor([0, 1, -2, 0]), torch.tensor([1, 2])])
def test_a_step_that_no_row_can_have_is_an_error(step):
    case = Case(norm=BatchNorm())
    module = trained(case)
    with pytest.raises((ValueError, RuntimeError), match="step"):
        run(module, case.sequences(), case.hx(), step=step)


def test_rows_of_different_ages_have_no_statistic_in_training():
    case = Case(norm=BatchNorm())
    with pytest.raises(ValueError, match="step"):
        run(case.module(), case.sequences(), case.hx(), step=torch.tensor([0, 1, 2, 3]))


@pytest.mark.parametrize("cls", [rnnorm.RNN, rnnorm.LSTM, rnnorm.GRU])
def test_windows_of_training_keep_step_zero(cls):
    torch.manual_seed(0)
    module = cls(2, 3, norm="batch")
    x, hx = torch.randn(6, 4, 2), None
    for window in x.split(3):
        _, hx = module(window, hx)
        hx = single(tuple(part.detach() for part in tuple_of(hx)))
    assert all(p.num_batches_tracked.tolist() == [2, 2, 2] for p in module.children())
