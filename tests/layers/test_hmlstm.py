"""HMLSTM beside its definition, from call to call, and with boundaries that are sampled."""

import pytest
import torch
from torch.func import functional_call
from torch.nn.utils.rnn import (
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
)

import rnnorm
from hmlstm_definition import INPUTS, LENGTHS, NORMS, H, L, definition, draw, sequences
from rnnorm.layers.hmlstm import Boundaries


def run(module, xs, hx=None, **options):
    packed = pack_sequence(xs, enforce_sorted=False)
    output, state, boundaries = module(packed, hx, **options)
    parts = [pad_packed_sequence(p, batch_first=True)[0] for p in (output, boundaries.z)]
    return *([p[b, : len(x)] for b, x in enumerate(xs)] for p in parts), state


def gradients(outputs, found, states, leaves):
    generator = torch.Generator().manual_seed(5)
    loss = sum(
        (part * torch.randn(part.shape, generator=generator, dtype=part.dtype)).sum()
        for part in [*outputs, *found, *states]
    )
    return torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("boundary", ["step", "soft"])
@pytest.mark.parametrize("norm", NORMS)
def test_values_and_gradients_are_those_of_the_definition(norm, boundary):
    norm = NORMS[norm]
    module, xs = draw(norm, boundary=boundary, slope=1.5), sequences()
    got, want = run(module, xs), definition(module, norm, xs, boundary, 1.5)
    leaves = [*module.parameters(), *xs]
    grads = [gradients(*result, leaves) for result in (got, want)]
    for name, mine, theirs in zip(("outputs", "z", "states"), got, want, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, msg=lambda m, name=name: f"{name}: {m}")
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("norm", NORMS)
def test_a_boundary_of_0_or_1_updates_copies_or_flushes(norm):
    norm = NORMS[norm]
    module, xs = draw(norm), sequences()
    outputs, found, states = run(module, xs)
    want = definition(module, norm, xs, by_cases=True)
    for mine, theirs in zip((outputs, found, states), want, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b)
    z = torch.cat(found)
    assert set(z.unique().tolist()) == {0.0, 1.0}


def words_and_sentences():
    """Sequences whose last two inputs end a word, and with it now and then a sentence."""
    xs = [x.detach() for x in sequences()]
    for x in xs:
        x[:, 1] = (torch.rand(len(x)) < 0.5).double()
        x[:, 2] = x[:, 1] * (torch.rand(len(x)) < 0.5)
    return [x.requires_grad_() for x in xs]


@pytest.mark.parametrize("norm", NORMS)
def test_given_boundaries_update_copy_or_flush(norm):
    norm = NORMS[norm]
    module, xs = draw(norm, boundary="given"), words_and_sentences()
    got = run(module, xs)
    want = definition(module, norm, xs, "given", by_cases=True)
    for mine, theirs in zip(got, want, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b)
    _, found, (_, _, z_n) = got
    assert all(torch.equal(z, x[:, 1:]) for z, x in zip(found, xs, strict=True))
    assert torch.equal(z_n.T, torch.stack([x[-1, 1:] for x in xs]))
    # inputs and boundaries of any value between, as soft ones have
    soft = definition(module, norm, xs, "given")
    leaves = [*module.parameters(), *xs]
    for a, b in zip(gradients(*got, leaves), gradients(*soft, leaves), strict=True):
        torch.testing.assert_close(a, b)


def test_given_boundaries_have_no_weights():
    module = rnnorm.HMLSTM(7, H, boundary="given", norm="layer")
    assert module.weight_ih_l0.shape == (4 * H, 5)
    assert module.weight_hh_l0.shape == module.weight_ah_l1.shape == (4 * H, H)
    assert module.gamma_recurrent_l0.shape == (4 * H,)


def test_given_boundaries_go_on_from_call_to_call():
    module = draw(boundary="given", batch_first=True)
    x = pad_sequence([x.detach() for x in words_and_sentences()[:2]], batch_first=True)
    output, states, boundaries = module(x)
    first, between, _ = module(x[:, :3])
    second, last, found = module(x[:, 3:], between, step=3)
    torch.testing.assert_close(torch.cat([first, second], 1), output)
    assert torch.equal(found.z, boundaries.z[:, 3:])
    for one, two in zip(last, states, strict=True):
        torch.testing.assert_close(one, two)


def test_copied_states_are_the_same_bits():
    module = draw()
    with torch.no_grad():
        module.bias_l0[-1] = -100.0
    x = torch.randn(4, 2, INPUTS).double()
    hx = (*torch.randn(2, L, 2, H).double(), torch.zeros(L - 1, 2).double())
    _, (h_n, c_n, z_n), boundaries = module(x, hx)
    assert not boundaries.z.any()
    assert not z_n.any()
    assert torch.equal(h_n[1:], hx[0][1:])
    assert torch.equal(c_n[1:], hx[1][1:])
    assert not torch.equal(h_n[0], hx[0][0])


def test_the_straight_through_gradient_is_that_of_the_probability():
    module, x = draw(), torch.randn(1, 5, INPUTS).double()
    _, _, boundaries = module(x)
    hard, soft = (
        torch.autograd.grad(part[..., 0].sum(), module.weight_ih_l0, retain_graph=True)[0]
        for part in boundaries
    )
    torch.testing.assert_close(hard, soft)
    assert hard.any()
    module.slope = 4.0
    steeper = torch.autograd.grad(module(x)[2].z[..., 0].sum(), module.weight_ih_l0)[0]
    assert not torch.allclose(steeper, hard)


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_soft_gradients_are_those_of_finite_differences(norm):
    module = draw(NORMS[norm], boundary="soft")
    names = [name for name, _ in module.named_parameters()]
    x = pad_sequence([s.detach() for s in sequences()])[:3]

    def function(x, *parameters):
        given = dict(zip(names, parameters, strict=True))
        output, state, boundaries = functional_call(
            module, given, (x,), {"lengths": [3, 3, 3, 3, 3, 2]}
        )
        return output, *state, boundaries.z

    inputs = (x.requires_grad_(), *(p.detach().requires_grad_() for p in module.parameters()))
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("norm", NORMS)
def test_padding_is_nothing(norm):
    xs = [s.detach() for s in sequences()]
    found = []
    for value, extra in ((0.0, 0), (float("nan"), 2)):
        module = draw(NORMS[norm])
        x = torch.nn.functional.pad(
            pad_sequence(xs, padding_value=value), (0, 0, 0, 0, 0, extra), value=value
        )
        output, state, boundaries = module(x, lengths=torch.tensor(LENGTHS))
        for b, n in enumerate(LENGTHS):
            assert not output[n:, b].any()
            assert not boundaries.z[n:, b].any()
        (output.sum() + sum(s.sum() for s in state)).backward()
        grads = [p.grad for p in module.parameters()]
        found.append([output[:6], *state, *boundaries.z[:6], *module.buffers(), *grads])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("boundary", ["step", "soft", "sample"])
@pytest.mark.parametrize("norm", NORMS)
def test_a_stream_is_one_pass(norm, boundary):
    module = draw(NORMS[norm], boundary=boundary, batch_first=True)
    x = torch.randn(5, 6, INPUTS).double()
    module(x)
    module.eval()
    output, state, boundaries = module(x)
    first, between, z_first = module(x[:, :2])
    second, last, z_second = module(x[:, 2:], between, step=2)
    torch.testing.assert_close(torch.cat([first, second], 1), output)
    torch.testing.assert_close(torch.cat([z_first.z, z_second.z], 1), boundaries.z)
    one, alone, _ = module(x[3, 2:], tuple(s[:, 3] for s in between), step=2)
    torch.testing.assert_close(one, output[3, 2:])
    for a, b, c in zip(last, state, alone, strict=True):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(c, b[:, 3])


@pytest.mark.parametrize("norm", ["batch", "joint"])
def test_update_bn_estimates_the_statistics_of_every_layer(norm):
    # a boundary that is hard turns a small difference into a large one
    module = draw(NORMS[norm], boundary="soft")
    x = torch.randn(3, 200, INPUTS).double()
    module.eval()
    rnnorm.update_bn([x], module)
    assert all(p.num_batches_tracked.tolist() == [1, 1, 1] for p in module.children())
    torch.testing.assert_close(module(x)[0], module.train()(x)[0], rtol=0.05, atol=0.02)


def test_samples_are_drawn_in_training_alone_with_their_probability():
    module = draw(boundary="sample")
    x = torch.randn(1, 1, INPUTS).double().expand(1, 4000, INPUTS)
    torch.manual_seed(0)
    _, _, boundaries = module(x)
    p = boundaries.probability[0, 0, 0].item()
    assert 0.05 < p < 0.95
    assert set(boundaries.z.unique().tolist()) == {0.0, 1.0}
    assert abs(boundaries.z[0, :, 0].mean().item() - p) < 4 * (p * (1 - p) / 4000) ** 0.5
    torch.manual_seed(0)
    assert torch.equal(module(x)[2].z, boundaries.z)
    (grad,) = torch.autograd.grad(boundaries.z.sum(), module.weight_ih_l0)
    assert not grad.any()
    z = module.eval()(x)[2].z
    assert torch.equal(z[0, 0, 0], (boundaries.probability[0, 0, 0] > 0.5).double())


def test_reinforce_is_an_unbiased_estimate_of_the_gradient():
    """Over all outcomes of two steps the mean estimate is the gradient of the mean cost."""
    p = torch.tensor([[0.3], [0.6]], dtype=torch.float64, requires_grad=True)
    costs = {(a, b): 1.0 + 2 * a - 3 * b + 4 * a * b for a in (0, 1) for b in (0, 1)}

    def chance(z):
        return torch.stack([p[t, 0] if z[t] else 1 - p[t, 0] for t in range(2)]).prod()

    (want,) = torch.autograd.grad(sum(chance(z) * cost for z, cost in costs.items()), p)
    got = torch.zeros_like(p)
    for z, cost in costs.items():
        for other, other_cost in costs.items():
            # two rows of the same probabilities; what a step costs comes at the last one
            rows = torch.tensor([z, other], dtype=torch.float64).T.unsqueeze(2)
            boundaries = Boundaries(rows, p.unsqueeze(1).expand(2, 2, 1))
            loss = boundaries.reinforce(torch.tensor([[0.0, 0.0], [cost, other_cost]]).double())
            (grad,) = torch.autograd.grad(loss, p)
            got += (chance(z) * chance(other)).detach() * grad
    torch.testing.assert_close(got, want)


def test_reinforce_lets_a_sampled_boundary_learn():
    module = draw(boundary="sample")
    x = torch.randn(4, 8, INPUTS).double()
    output, _, boundaries = module(x, lengths=[4] * 7 + [2])
    cost = output.square().sum(-1)
    (boundaries.reinforce(cost) + cost.mean()).backward()
    assert module.weight_ih_l0.grad[-1].any()
    assert all(p.grad.isfinite().all() for p in module.parameters())
    with pytest.raises(RuntimeError, match=r"cost must be \(T, B\)"):
        boundaries.reinforce(cost.T)


def test_reinforce_knows_where_the_rows_are():
    module, x = draw(boundary="sample", batch_first=True), torch.randn(5, 4, INPUTS).double()
    output, _, boundaries = module(x)
    cost = output.square().sum(-1)
    steps_first = Boundaries(*(part.transpose(0, 1) for part in boundaries))
    assert torch.equal(boundaries.reinforce(cost), steps_first.reinforce(cost.T))
    with pytest.raises(RuntimeError, match=r"cost must be \(B, T\).* got \(4, 5\) and \(5, 4, 2\)"):
        boundaries.reinforce(cost.T)
    _, _, unbatched = module(x[0])
    with pytest.raises(RuntimeError, match=r"cost must be \(T, B\)"):
        unbatched.reinforce(cost[0])
