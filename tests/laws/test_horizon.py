"""Law 4: beyond the horizon the last step serves."""

from dataclasses import replace

import pytest
import torch
from cases import Case, any_case, assert_all_close, buffers, law, run, trained
from hypothesis import given
from hypothesis import strategies as st

import definition
from rnnorm import BatchNorm


def populations(module):
    return dict(module.named_children())


@law(30)
@given(any_case(), st.integers(6, 9))
def test_longer_sequences_are_evaluated_with_the_last_row(case, length):
    module = trained(case)
    longer = replace(case, lengths=(length, 2), seed=case.seed + 1)
    sequences, hx = longer.sequences(), longer.hx()
    want = definition.network(module, case.norm, sequences, hx)
    outputs, states = run(module, sequences, hx)
    assert_all_close(outputs, want.outputs)
    assert_all_close(states, want.states)


@law(20)
@given(any_case(population="per_step"), st.integers(1, 3))
def test_training_beyond_the_horizon_updates_nothing_and_uses_the_batch(case, horizon):
    short = replace(case, norm=replace(case.norm, horizon=horizon))
    free = replace(case, norm=replace(case.norm, horizon=None))
    module, other = short.module(), free.module()
    got, want = (run(m, case.sequences(), case.hx()) for m in (module, other))
    assert_all_close(got[0], want[0], 1e-12)
    assert_all_close(got[1], want[1], 1e-12)
    for name, population in populations(module).items():
        if not (case.norm.input == "sequence" and "_input_" in name):
            assert len(population.rows) == horizon
        rows = min(len(population.rows), len(populations(other)[name].rows))
        for buffer in ("mean", "var", "rows", "num_batches_tracked"):
            mine, theirs = (getattr(populations(m)[name], buffer)[:rows] for m in (module, other))
            assert (mine == theirs).all()


def test_without_a_horizon_the_population_grows_to_the_longest_sequence_seen():
    case = Case("GRU", BatchNorm(min_rows=2), lengths=(3, 3, 2))
    module = case.module()
    run(module, case.sequences())
    run(module, replace(case, lengths=(6, 5, 5)).sequences())
    run(module, replace(case, lengths=(2, 2)).sequences())
    for population in populations(module).values():
        assert population.num_batches_tracked.tolist() == [3, 3, 2, 1, 1, 0][: len(population.rows)]
        assert population.mean.shape == (len(population.rows), 12)


def test_evaluation_does_not_grow_the_population():
    case = Case(norm=BatchNorm(), lengths=(3, 3))
    module = trained(case)
    before = buffers(module)
    run(module, replace(case, lengths=(9, 8)).sequences())
    assert_all_close(buffers(module), before, 0)


def test_the_last_row_with_a_count_serves_not_the_last_row():
    case = Case(norm=BatchNorm(horizon=6), lengths=(3, 3, 3))
    module = trained(case)
    with torch.no_grad():
        for population in module.children():
            assert population.rows.tolist()[3:] == [0, 0, 0]
            population.mean[3:] = float("nan")
            population.var[3:] = float("nan")
    longer = replace(case, lengths=(8, 5))
    want = definition.network(module, case.norm, longer.sequences())
    assert_all_close(run(module, longer.sequences())[0], want.outputs)


@pytest.mark.parametrize("norm", [BatchNorm(horizon=1), BatchNorm(population="shared")])
def test_one_row_serves_every_step(norm):
    case = Case("RNN_TANH", norm, lengths=(4, 4, 4))
    module = trained(case)
    assert all(len(p.rows) == 1 for p in module.children())
    x = torch.stack(case.sequences(), 1)
    whole, _ = module(x, case.hx()[0])
    later, _ = module(x, case.hx()[0], step=50)
    assert_all_close(whole, later, 0)


def test_a_window_beyond_the_horizon_updates_nothing():
    case = Case(norm=BatchNorm(horizon=4), lengths=(3, 3, 3))
    module = case.module()
    run(module, case.sequences())
    before = buffers(module)
    run(module, case.sequences(), step=4)
    assert_all_close(buffers(module), before, 0)


def test_a_window_that_crosses_the_horizon_updates_its_first_part():
    case = Case("GRU", BatchNorm(horizon=4), lengths=(3, 3, 3))
    module = case.module()
    run(module, case.sequences(), step=2)
    for population in module.children():
        assert population.rows.tolist() == [0, 0, 3, 3]
