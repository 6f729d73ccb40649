"""Law 9: a site whose rows are all equal outputs beta; `initial_noise` keeps gradients finite."""

from dataclasses import replace

import pytest
import torch
from cases import Case, any_case, assert_all_close, gradients, law, run
from hypothesis import given
from hypothesis import strategies as st

import rnnorm
from rnnorm import BatchNorm

CLASSES = [rnnorm.RNN, rnnorm.LSTM, rnnorm.GRU]


def equal_rows(case):
    sequences, hx = case.sequences(), case.hx()
    sequences = [sequences[0].detach().clone().requires_grad_() for _ in sequences]
    hx = hx and tuple(
        part[:, :1].detach().repeat(1, part.shape[1], 1).requires_grad_() for part in hx
    )
    return sequences, hx


def bias(module):
    return module.bias_ih_l0, module.bias_hh_l0


def test_an_rnn_of_equal_rows_outputs_its_bias():
    case = Case("RNN_TANH", BatchNorm(), (3, 3, 3))
    module = case.module()
    outputs, _ = run(module, *equal_rows(case))
    want = torch.tanh(sum(bias(module))).expand(3, 4)
    assert_all_close(outputs, [want] * 3)


def test_a_gru_of_equal_rows_outputs_its_bias():
    case = Case("GRU", BatchNorm(), (3, 3, 3))
    module = case.module()
    sequences, hx = equal_rows(case)
    outputs, _ = run(module, sequences, hx)
    (x_r, x_z, x_n), (h_r, h_z, h_n) = (b.chunk(3) for b in bias(module))
    r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
    n, h, want = (x_n + r * h_n).tanh(), hx[0][0, 0], []
    for _ in range(3):
        h = (1 - z) * n + z * h
        want.append(h)
    assert_all_close(outputs, [torch.stack(want)] * 3)


@pytest.mark.parametrize("joint", [False, True])
def test_an_lstm_of_equal_rows_outputs_beta(joint):
    norm = BatchNorm(input=None, recurrent=None, joint="frame") if joint else BatchNorm()
    case = Case("LSTM", norm, (3, 3, 3))
    module = case.module()
    sequences, hx = equal_rows(case)
    outputs, (_, c_n) = run(module, sequences, hx)
    i, f, g, o = sum(bias(module)).chunk(4)
    h = o.sigmoid() * module.beta_cell_l0.tanh()
    c = hx[1][0]
    for _ in range(3):
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    assert_all_close(outputs, [h.expand(3, 4)] * 3, 1e-7)
    assert_all_close(c_n, c[None], 1e-7)


def test_a_carry_of_equal_rows_is_beta():
    case = Case("LSTM", BatchNorm(cell=None, carry="frame"), (3, 3, 3))
    module = case.module()
    _, (_, c_n) = run(module, *equal_rows(case))
    assert_all_close(c_n, module.beta_carry_l0.expand(1, 3, 4), 1e-7)


@law(40)
@given(any_case(dense=True), st.booleans())
def test_one_step_of_equal_rows_has_a_finite_gradient(case, whole):
    # the sequence scope sees the frames of all steps: with one step both scopes see equal rows
    case = replace(case, lengths=(1,) * len(case.lengths))
    module = case.module()
    sequences, hx = equal_rows(case)
    outputs, states = run(module, sequences, hx)
    if whole:
        outputs, states = [sum(outputs)], []
    for name, gradient in gradients(module, sequences, hx, outputs, states).items():
        assert torch.isfinite(gradient).all(), name
    for name, buffer in module.named_buffers():
        assert torch.isfinite(buffer).all(), name


def gradient_of_a_constant_input(cls, steps, noise):
    """All gradients of 16 equal rows of zeros (the black border of an image), in float32."""
    torch.manual_seed(0)
    module = cls(1, 24, norm="batch", initial_noise=noise)
    x = torch.zeros(steps, 16, 1, requires_grad=True)
    output, _ = module(x)
    (output[-1] * torch.randn(16, 24)).sum().backward()
    assert torch.isfinite(output).all()
    return torch.cat([p.grad.flatten() for p in module.parameters()])


@pytest.mark.parametrize("cls", CLASSES)
def test_noise_keeps_the_gradient_of_400_constant_steps_finite(cls):
    gradient = gradient_of_a_constant_input(cls, 400, 0.1)
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() < 1e4


def test_without_noise_the_gradient_of_a_constant_prefix_overflows():
    torch.manual_seed(0)
    module = rnnorm.LSTM(1, 24, norm="batch")
    h_0, c_0 = torch.zeros(1, 16, 24, requires_grad=True), torch.zeros(1, 16, 24)
    sizes = []
    for steps in (1, 2, 4, 8):
        output, _ = module(torch.zeros(steps, 16, 1), (h_0, c_0))
        (gradient,) = torch.autograd.grad((output[-1] * torch.randn(16, 24)).sum(), h_0)
        sizes.append(gradient.norm().item())
    assert sizes[1] > 10 * sizes[0]
    assert sizes[2] > 100 * sizes[1]
    assert sizes[3] > 10000 * sizes[2]
    output, _ = module(torch.zeros(40, 16, 1), (h_0, c_0))
    (gradient,) = torch.autograd.grad((output[-1] * torch.randn(16, 24)).sum(), h_0)
    assert not torch.isfinite(gradient).all()


def test_noise_is_drawn_in_training_and_for_absent_states_alone():
    torch.manual_seed(0)
    module = rnnorm.GRU(2, 3, norm="batch", initial_noise=0.1)
    x = torch.randn(4, 5, 2)
    given = torch.zeros(1, 5, 3)
    assert not torch.equal(module(x)[0], module(x)[0])
    assert torch.equal(module(x, given)[0], module(x, given)[0])
    module.eval()
    assert torch.equal(module(x)[0], module(x)[0])


@pytest.mark.parametrize("cls", CLASSES)
def test_the_noise_has_its_standard_deviation_and_the_learnt_state_as_its_mean(cls):
    torch.manual_seed(0)
    module = cls(2, 3, norm="batch", initial_noise=0.1, learn_initial_state=True)
    with torch.no_grad():
        module.h_0.fill_(5.0)
        module.weight_hh_l0.zero_()
        module.weight_hh_l0[:3] = torch.eye(3)
    module(torch.randn(2, 4000, 2))
    population = module.population_recurrent_l0
    assert_all_close([population.mean[0, :3]], [torch.full((3,), 5.0)], 1e-2)
    assert_all_close([population.var[0, :3].sqrt()], [torch.full((3,), 0.1)], 0.05)


def test_the_noise_leaves_c_alone():
    torch.manual_seed(0)
    module = rnnorm.LSTM(2, 3, initial_noise=0.5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    # every gate is 1/2 and the candidate 0 whatever h is: c_1 is half of c_0
    _, (_, c_n) = module(torch.randn(1, 4, 2))
    assert not c_n.any()


@pytest.mark.parametrize("noise", [-0.1, float("nan"), float("inf")])
def test_a_noise_that_is_no_standard_deviation_is_an_error(noise):
    with pytest.raises(ValueError, match="initial_noise"):
        rnnorm.LSTM(2, 3, initial_noise=noise)
