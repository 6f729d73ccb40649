"""Law 2: a step's statistics come from its active rows, a prefix of the length-sorted batch."""

import pytest
import torch
from cases import STEADY, Case, any_case, assert_all_close, assert_close, law, run
from hypothesis import given

import definition
from rnnorm import BatchNorm

INPUT_ONLY = BatchNorm(input="frame", recurrent=None, cell=None, min_rows=2)


@law(40)
@given(any_case(population="per_step", horizon=None, cells=STEADY))
def test_a_step_counts_the_rows_that_are_active_there(case):
    module = case.module()
    run(module, case.sequences(), case.hx())
    active = [sum(n > t for n in case.lengths) for t in range(max(case.lengths))]
    for name, population in module.named_children():
        if case.norm.input == "sequence" and "_input_" in name:
            counts = [sum(case.lengths)]
        else:
            counts = [n if n >= min(case.norm.min_rows, active[0]) else 0 for n in active]
        assert population.rows.tolist()[: len(counts)] == counts
        assert population.rows.tolist() == sorted(population.rows.tolist(), reverse=True)
        assert not any(population.rows.tolist()[len(counts) :])


@pytest.mark.parametrize("cell", ["RNN_TANH", "LSTM", "GRU", "LiGRU"])
@pytest.mark.parametrize("reverse", [False, True])
def test_backward_direction_starts_at_each_last_frame(cell, reverse):
    case = Case(cell, INPUT_ONLY, lengths=(2, 5, 3, 5), bidirectional=True)
    module, sequences = case.module(), case.sequences()
    run(module, sequences)
    suffix = "l0_reverse" if reverse else "l0"
    weight = getattr(module, f"weight_ih_{suffix}")
    population = module.get_submodule(f"population_input_{suffix}")
    for t in range(4):
        frames = [s[-1 - t] if reverse else s[t] for s in sequences if len(s) > t]
        terms = torch.stack(frames) @ weight.T
        assert_close(f"mean[{t}]", population.mean[t], terms.mean(0).detach())
        assert_close(f"var[{t}]", population.var[t], terms.var(0).detach())


@pytest.mark.parametrize("reverse", [False, True])
def test_the_sequence_scope_counts_every_frame_once(reverse):
    norm = BatchNorm(input="sequence", recurrent=None, cell=None)
    case = Case("GRU", norm, lengths=(1, 5, 2), bidirectional=True)
    module, sequences = case.module(), case.sequences()
    run(module, sequences)
    suffix = "l0_reverse" if reverse else "l0"
    terms = torch.cat(sequences) @ getattr(module, f"weight_ih_{suffix}").T
    population = module.get_submodule(f"population_input_{suffix}")
    assert population.rows.tolist() == [8]
    assert_close("mean", population.mean[0], terms.mean(0).detach())
    assert_close("var", population.var[0], terms.var(0).detach())


def test_a_sequence_that_has_ended_has_no_part_in_a_later_step():
    case = Case(norm=BatchNorm(min_rows=2), lengths=(2, 4, 4, 4))
    module, sequences = case.module(), case.sequences()
    outputs, _ = run(module, sequences, case.hx())
    late = torch.autograd.grad(outputs[1][2:].sum(), sequences, retain_graph=True)
    assert (late[0].abs().sum(-1) > 0).all()  # its frames are in the statistics of steps 0 and 1
    (own,) = torch.autograd.grad(outputs[0].sum(), sequences[1])
    assert (own[:2].abs().sum(-1) > 0).all()
    assert (own[2:] == 0).all()


def test_a_final_state_is_that_after_the_last_frame():
    case = Case(norm=BatchNorm(), lengths=(2, 4, 3), bidirectional=True)
    outputs, (h_n, _) = run(case.module(), case.sequences(), case.hx())
    H = case.hidden_size
    assert_all_close(h_n[0], [rows[-1, :H] for rows in outputs])
    assert_all_close(h_n[1], [rows[0, H:] for rows in outputs])


def test_the_definition_reads_the_specification_as_the_layer_does():
    case = Case(norm=BatchNorm(), lengths=(3, 2, 2), num_layers=2, bidirectional=True)
    module = case.module()
    taken = definition.network(module, case.norm, case.sequences(), case.hx()).statistics
    assert {f"population_{name}" for name in taken} == {n for n, _ in module.named_children()}
