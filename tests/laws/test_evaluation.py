"""Law 7: evaluation is deterministic, row by row independent of the batch, and differentiable."""

import pytest
import torch
from cases import any_case, assert_all_close, buffers, gradients, law, run, trained
from hypothesis import given
from test_padding_is_nothing import SMALL, as_function


@law(40)
@given(any_case(norms="any"))
def test_a_row_does_not_see_the_others(case):
    module = trained(case)
    sequences, hx = case.sequences(), case.hx()
    outputs, states = run(module, sequences, hx)
    for b, sequence in enumerate(sequences):
        alone = hx and tuple(part[:, b : b + 1] for part in hx)
        output, state = run(module, [sequence], alone)
        assert_all_close(output, outputs[b : b + 1], 1e-12)
        assert_all_close(state, [part[:, b : b + 1] for part in states], 1e-12)
    found = torch.autograd.grad(outputs[0].sum(), sequences, allow_unused=True)
    assert all(gradient is None or not gradient.any() for gradient in found[1:])


@law(20)
@given(any_case(norms="any"))
def test_evaluation_gives_the_same_twice_and_keeps_every_buffer(case):
    module = trained(case)
    module.initial_noise = 0.5
    before = buffers(module)
    found = []
    for _ in range(2):
        sequences, hx = case.sequences(), case.hx()
        outputs, states = run(module, sequences, hx)
        found.append((outputs, states, gradients(module, sequences, hx, outputs, states)))
    for got, want in zip(*found, strict=True):
        assert_all_close(got, want, 0)
    with torch.no_grad():
        assert_all_close(run(module, case.sequences(), case.hx())[0], found[0][0], 1e-12)
    assert_all_close(buffers(module), before, 0)


@pytest.mark.parametrize("name", SMALL)
def test_evaluation_is_differentiable(name):
    case = SMALL[name]
    state = trained(case).state_dict()

    class InEvaluation(type(case)):
        def module(self):
            module = super().module()
            module.load_state_dict(state)
            return module.eval()

    function, inputs = as_function(InEvaluation(**vars(case)))
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
