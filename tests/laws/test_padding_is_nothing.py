"""Law 1: what stands in padded positions changes no output, gradient or buffer."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from cases import (
    Case,
    any_case,
    assert_all_close,
    assert_population,
    buffers,
    gradients,
    law,
    run,
    run_padded,
    single,
    trained,
    tuple_of,
)
from hypothesis import given
from hypothesis import strategies as st
from torch.func import functional_call
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence, pad_sequence

import definition
from rnnorm import BatchNorm, LayerNorm, RMSNorm, backends, use_backend


def compare_with_definition(case, module, norm, got_by=run):
    sequences, hx = case.sequences(), case.hx()
    want = definition.network(module, norm, sequences, hx)
    want_gradients = gradients(module, sequences, hx, want.outputs, want.states)
    outputs, states = got_by(module, sequences, hx)
    assert_all_close(outputs, want.outputs)
    assert_all_close(states, want.states)
    assert_all_close(gradients(module, sequences, hx, outputs, states), want_gradients, 1e-7)
    return want


@law(120)
@given(any_case(norms="any"))
def test_packed_input_equals_the_definition_in_training(case):
    module = case.module()
    want = compare_with_definition(case, module, case.norm)
    if want.statistics:
        assert_population(module, [want.statistics], case.norm)


@law(60)
@given(any_case(norms="any"))
def test_packed_input_equals_the_definition_in_evaluation(case):
    module = trained(case)
    before = buffers(module)
    compare_with_definition(case, module, case.norm)
    assert_all_close(buffers(module), before, 0)


@law(60)
@given(any_case(norms="any"), st.integers(0, 3))
def test_lengths_equal_the_definition(case, extra):
    def padded(module, sequences, hx):
        return run_padded(module, sequences, hx, extra=extra)

    module = case.module()
    want = compare_with_definition(case, module, case.norm, padded)
    if want.statistics:
        assert_population(module, [want.statistics], case.norm)


@law(40)
@given(any_case(norms="any"), st.booleans(), st.sampled_from([float("nan"), float("inf"), -1e300]))
def test_padding_changes_nothing(case, training, value):
    def everything(value, extra):
        module = case.module() if training else trained(case)
        sequences, hx = case.sequences(), case.hx()
        outputs, states = run_padded(module, sequences, hx, value=value, extra=extra)
        found = gradients(module, sequences, hx, outputs, states)
        return outputs, states, found, buffers(module)

    for got, want in zip(everything(value, 3), everything(0.0, 0), strict=True):
        assert_all_close(got, want, 1e-12)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("norm", [BatchNorm(), LayerNorm(), None])
def test_padded_positions_give_zeros_and_get_no_gradient(norm, batch_first):
    case = Case(norm=norm, lengths=(2, 4, 3), bidirectional=True, num_layers=2)
    module = case.module()
    module.batch_first = batch_first
    x = pad_sequence([s.detach() for s in case.sequences()], batch_first, float("nan"))
    lengths = torch.tensor(case.lengths)
    time_last = torch.arange(4)
    padded = time_last >= lengths[:, None] if batch_first else time_last[:, None] >= lengths
    output, _ = module(x.requires_grad_(), case.hx(), lengths=lengths)
    assert output.shape == (*x.shape[:2], 2 * case.hidden_size)
    assert (output[padded] == 0).all()
    output.square().sum().backward()
    assert (x.grad[padded] == 0).all()
    assert (x.grad[~padded].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("kernel", ["reference", "cpu"])
@pytest.mark.parametrize("norm", [BatchNorm(), LayerNorm(), None])
def test_a_gradient_of_padded_output_is_never_read(norm, kernel):
    if unavailable := backends()[kernel]:
        pytest.skip(unavailable)
    case = Case(norm=norm, lengths=(2, 4, 3), bidirectional=True, num_layers=2)
    x = pad_sequence([s.detach() for s in case.sequences()]).requires_grad_()
    found = []
    for value in (0.0, float("nan")):
        module = case.module()
        with use_backend(kernel):
            output, _ = module(x, lengths=case.lengths)
        grad = torch.ones_like(output)
        grad[torch.arange(4).unsqueeze(1) >= torch.tensor(case.lengths)] = value
        leaves = [x, *module.parameters()]
        found.append(torch.autograd.grad(output, leaves, grad))
    assert_all_close(found[1], found[0], 0)


@law(20)
@given(any_case(norms="any", cells=("LSTM", "GRU", "RNN_TANH")))
def test_the_reference_without_a_norm_equals_the_definition(case):
    case = replace(case, norm=None)
    with use_backend("reference"):
        for got_by in (run, run_padded):
            compare_with_definition(case, case.module(), None, got_by)


def test_a_packed_sequence_that_was_sorted_already_is_the_same():
    case = Case(norm=BatchNorm(), lengths=(4, 3, 3, 1), bidirectional=True)
    sequences, hx = case.sequences(), case.hx()
    packed, state = case.module()(pack_sequence(sequences), hx)
    assert packed.sorted_indices is None
    want, want_state = run(case.module(), sequences, hx)
    padded, _ = pad_packed_sequence(packed)
    assert_all_close([padded[:n, b] for b, n in enumerate(case.lengths)], want)
    assert_all_close(state, want_state)


@pytest.mark.parametrize("lengths", [[4, 0, 3], [4, 5, 3], [4, -1, 3], [4, 3], [4, 4, 3, 3]])
@pytest.mark.parametrize("norm", [BatchNorm(), None])
def test_lengths_that_do_not_fit_the_input_are_an_error(norm, lengths):
    module = Case(norm=norm).module()
    with pytest.raises((RuntimeError, ValueError), match=r"(?i)length"):
        module(torch.zeros(4, 3, 3, dtype=torch.float64), lengths=torch.tensor(lengths))
    assert all(not population.rows.any() for population in module.children())


@pytest.mark.parametrize("norm", [BatchNorm(), None])
def test_lengths_are_for_a_dense_batch_alone(norm):
    case = Case(norm=norm)
    module = case.module()
    lengths = torch.tensor(case.lengths)
    with pytest.raises(ValueError, match="lengths"):
        module(pack_sequence(case.sequences(), enforce_sorted=False), lengths=lengths)
    with pytest.raises(ValueError, match="lengths"):
        module(case.sequences()[0], lengths=lengths[:1])


@pytest.mark.parametrize("how", ["list", "int32", "tensor"])
def test_lengths_may_be_a_list_or_a_tensor(how):
    case = Case(norm=BatchNorm(), lengths=(2, 4, 3))
    x = pad_sequence([s.detach() for s in case.sequences()])
    lengths = torch.tensor(case.lengths, dtype=torch.int32 if how == "int32" else torch.int64)
    module = case.module()
    output, _ = module(x, lengths=list(case.lengths) if how == "list" else lengths)
    want, _ = run(case.module(), case.sequences())
    assert_all_close(
        [rows[:n] for rows, n in zip(output.unbind(1), case.lengths, strict=True)], want
    )


@law(30)
@given(any_case(norms="any", dense=True), st.booleans())
def test_a_dense_batch_is_a_ragged_one_with_equal_lengths(case, batch_first):
    sequences, hx = case.sequences(), case.hx()
    module = case.module()
    module.batch_first = batch_first
    output, state = module(torch.stack(sequences, 0 if batch_first else 1), single(hx))
    outputs = output.unbind(0 if batch_first else 1)
    want = definition.network(module, case.norm, sequences, hx)
    assert_all_close(outputs, want.outputs)
    assert_all_close(tuple_of(state), want.states)
    assert_all_close(
        gradients(module, sequences, hx, outputs, tuple_of(state)),
        gradients(module, sequences, hx, want.outputs, want.states),
        1e-7,
    )


@law(20)
@given(any_case(), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_changes_nothing(case, random):
    order = random.sample(range(len(case.lengths)), len(case.lengths))
    sequences, hx = case.sequences(), case.hx()
    module, other = case.module(), case.module()
    outputs, states = run(module, sequences, hx)
    turned, turned_states = run(
        other, [sequences[b] for b in order], hx and tuple(part[:, order] for part in hx)
    )
    assert_all_close(turned, [outputs[b] for b in order])
    assert_all_close(turned_states, [part[:, order] for part in states])
    assert_all_close(buffers(other), buffers(module))


# a step without a statistic of its own takes another's as constants, which differences do not
every_step = partial(BatchNorm, min_rows=2)
SMALL = {
    "lstm-batch": Case(norm=every_step(gamma=0.5, eps=1e-2), lengths=(3, 2, 3)),
    "lstm-sequence": Case(
        norm=every_step(input="sequence", gamma=0.5, eps=1e-2),
        lengths=(2, 3, 3),
        proj_size=2,
    ),
    "lstm-joint": Case(
        norm=every_step(input=None, recurrent=None, joint="frame", eps=1e-2),
        lengths=(2, 3, 3),
    ),
    "lstm-carry": Case(norm=every_step(carry="frame", cell=None, eps=1e-2), lengths=(2, 3, 3)),
    "lstm-layer": Case(norm=LayerNorm(eps=1e-2), lengths=(3, 1), bidirectional=True),
    "rnn-batch": Case("RNN_TANH", every_step(eps=1e-2), (2, 3, 3), bidirectional=True),
    "gru-batch": Case("GRU", every_step(eps=1e-2), (2, 3, 3), learnt_state=True, given_state=False),
    "peephole-batch": Case("LSTM-all", every_step(eps=1e-2), (2, 3, 3), proj_size=2),
    "peephole-carry": Case("LSTM-output", every_step(carry="frame", eps=1e-2), (2, 3, 3)),
    "before-batch": Case("GRU-before", every_step(eps=1e-2), (2, 3, 3)),
    "before-layer": Case("GRU-before", LayerNorm(eps=1e-2), (3, 1), bidirectional=True),
    "clockwork-batch": Case("ClockworkRNN", every_step(eps=1e-2), (2, 4, 4), num_layers=2),
    "clockwork-layer": Case("ClockworkRNN", LayerNorm(eps=1e-1), (3, 1), bidirectional=True),
    "own-batch": Case("LiGRU", every_step(input="sequence", eps=1e-2), (2, 3, 3), num_layers=2),
    "own-layer": Case("IndRNN", LayerNorm(eps=1e-2), (3, 1), bidirectional=True),
    "gru-layer": Case("GRU", LayerNorm(eps=1e-2), (3, 1)),
    "lstm-joint-gates": Case(
        norm=LayerNorm(input=False, recurrent=False, joint=True, over="gate", eps=1e-1),
        lengths=(3, 1),
    ),
    "lstm-rms": Case(norm=RMSNorm(carry=True, cell=False, eps=1e-2), lengths=(3, 1)),
    "gru-rms": Case("GRU", RMSNorm(over="term", eps=1e-2), (3, 1), bidirectional=True),
    "lstm-mixed": Case(
        norm={
            "input": every_step(eps=1e-2),
            "recurrent": RMSNorm(eps=1e-2),
            "cell": LayerNorm(eps=1e-1),
        },
        lengths=(2, 3, 3),
    ),
}


def as_function(case):
    """The outputs and states of a layer as a function of its parameters, input and states."""
    module = case.module()
    sequences, hx = case.sequences(), case.hx() or ()
    names = [name for name, _ in module.named_parameters()]

    def function(*tensors):
        parameters = dict(zip(names, tensors, strict=False))
        rest = tensors[len(names) :]
        rows, states = rest[: len(sequences)], rest[len(sequences) :]
        padded = pad_sequence(rows, padding_value=float("nan"))
        lengths = torch.tensor(case.lengths)
        arguments = (padded, single(states) if states else None)
        output, state = functional_call(
            module, parameters, arguments, {"lengths": lengths, "step": 0}
        )
        return output, *tuple_of(state)

    inputs = [p.detach().requires_grad_() for p in module.parameters()]
    return function, (*inputs, *sequences, *hx)


@pytest.mark.parametrize("name", SMALL)
def test_gradients_are_those_of_finite_differences(name):
    function, inputs = as_function(SMALL[name])
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("name", SMALL)
def test_second_gradients_are_those_of_finite_differences(name):
    function, inputs = as_function(SMALL[name])
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)
