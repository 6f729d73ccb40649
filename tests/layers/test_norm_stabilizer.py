"""The norm stabilizer against its equation."""

from itertools import pairwise

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import rnnorm


def definition(sequences, beta):
    total = sum(
        (torch.sqrt((now**2).sum()) - torch.sqrt((before**2).sum())) ** 2
        for h in sequences
        for before, now in pairwise(h)
    )
    return beta * total / sum(map(len, sequences))


@pytest.fixture
def h():
    torch.manual_seed(0)
    return torch.randn(6, 3, 4, dtype=torch.float64, requires_grad=True)


LENGTHS = [4, 6, 1]


def test_it_is_its_equation(h):
    got, want = rnnorm.norm_stabilizer(h, 50), definition(h.unbind(1), 50)
    torch.testing.assert_close(got, want)
    for mine, theirs in zip(torch.autograd.grad(got, h), torch.autograd.grad(want, h), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_padded_packed_and_batch_first_are_the_definition_over_the_real_frames(h):
    want = definition([h[:n, b] for b, n in enumerate(LENGTHS)], 2.0)
    packed = pack_padded_sequence(h, torch.tensor(LENGTHS), enforce_sorted=False)
    torch.testing.assert_close(rnnorm.norm_stabilizer(h, 2.0, LENGTHS), want)
    torch.testing.assert_close(rnnorm.norm_stabilizer(packed, 2.0), want)
    first = h.transpose(0, 1)
    torch.testing.assert_close(rnnorm.norm_stabilizer(first, 2.0, LENGTHS, batch_first=True), want)


@pytest.mark.parametrize("filling", [0.0, 1e300, float("nan")])
def test_padding_is_nothing(h, filling):
    real = torch.arange(6).unsqueeze(1) < torch.tensor(LENGTHS)
    padded = h.detach().where(real.unsqueeze(2), torch.tensor(filling, dtype=h.dtype))
    padded.requires_grad_()
    cost = rnnorm.norm_stabilizer(padded, 2.0, LENGTHS)
    (gradient,) = torch.autograd.grad(cost, padded)
    (want,) = torch.autograd.grad(rnnorm.norm_stabilizer(h, 2.0, LENGTHS), h)
    assert torch.equal(cost, rnnorm.norm_stabilizer(h, 2.0, LENGTHS))
    assert torch.equal(gradient, want)
    assert gradient[~real].eq(0).all()


def test_its_gradients_are_right(h):
    def cost(h):
        return rnnorm.norm_stabilizer(h, 3.0, LENGTHS)

    torch.autograd.gradcheck(cost, h)
    torch.autograd.gradgradcheck(cost, h)


def test_one_sequence_unbatched(h):
    torch.testing.assert_close(rnnorm.norm_stabilizer(h[:, 0], 1.0), definition([h[:, 0]], 1.0))


@pytest.mark.parametrize("shape", [(1, 3, 4), (5, 0, 4)])
def test_one_step_or_no_row_costs_nothing(shape):
    h = torch.randn(shape, requires_grad=True)
    rnnorm.norm_stabilizer(h, 1.0).backward()
    assert h.grad.eq(0).all()


def test_a_state_that_is_zero_has_a_gradient():
    h = torch.zeros(3, 2, 4, requires_grad=True)
    rnnorm.norm_stabilizer(h, 1.0).backward()
    assert h.grad.isfinite().all()


def test_half_types_are_added_up_in_float32():
    h = torch.full((3, 1, 4), 200.0, dtype=torch.float16)
    h[1] = 0
    assert rnnorm.norm_stabilizer(h, 3.0).item() == 2 * 400.0**2


def test_it_lowers_what_it_costs():
    torch.manual_seed(0)
    rnn, x = rnnorm.RNN(3, 8), torch.randn(10, 4, 3)
    sgd = torch.optim.SGD(rnn.parameters(), lr=0.05)
    costs = []
    for _ in range(20):
        cost = rnnorm.norm_stabilizer(rnn(x)[0], 5.0)
        sgd.zero_grad()
        cost.backward()
        sgd.step()
        costs.append(cost.item())
    assert costs[-1] < costs[0] / 2


@pytest.mark.parametrize(
    ("error", "match", "arguments"),
    [
        (ValueError, "beta must be finite and at least 0, got -1", (torch.ones(2, 3, 4), -1)),
        (TypeError, "beta must be a number", (torch.ones(2, 3, 4), "1")),
        (TypeError, "the first result of a layer, got a tuple", ((torch.ones(2, 3, 4),), 1)),
        (TypeError, "beta must be a number, got a Tensor", (torch.ones(2, 3, 4),) * 2),
        (ValueError, "output must be 2-D or 3-D, got 1-D", (torch.ones(2), 1)),
        (ValueError, "lengths must be None with 2-D output", (torch.ones(2, 4), 1, [2])),
        (RuntimeError, "one entry for each of the 3 rows", (torch.ones(2, 3, 4), 1, [2])),
    ],
)
def test_what_does_not_fit_is_an_error(error, match, arguments):
    with pytest.raises(error, match=match):
        rnnorm.norm_stabilizer(*arguments)


def test_lengths_of_a_packed_sequence_are_its_own(h):
    packed = pack_padded_sequence(h, torch.tensor([6, 4, 1]))
    with pytest.raises(ValueError, match="a PackedSequence, which has its own"):
        rnnorm.norm_stabilizer(packed, 1.0, [6, 4, 1])


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_jagged_output_has_the_cost_of_its_rows(h, batch_first):
    rows = [h[:length, row].detach() for row, length in enumerate(LENGTHS)]
    nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged).requires_grad_()
    cost = rnnorm.norm_stabilizer(nested, 3.0, batch_first=batch_first)
    torch.testing.assert_close(cost, definition([h[:n, k] for k, n in enumerate(LENGTHS)], 3.0))
    (grad,) = torch.autograd.grad(cost, nested)
    assert grad.shape == nested.shape
    with pytest.raises(ValueError, match="lengths must be None with a nested tensor"):
        rnnorm.norm_stabilizer(nested, 3.0, LENGTHS)
