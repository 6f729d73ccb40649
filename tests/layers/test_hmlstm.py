"""HMLSTM beside a definition written from the paper's three operations."""

import copy
import pickle

import pytest
import torch
from torch.func import functional_call
from torch.nn.utils.rnn import (
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
)

import rnnorm
from rnnorm import BatchNorm, LayerNorm
from rnnorm.diagnostics import gradient_norms
from rnnorm.layers.hmlstm import Boundaries

L, H, INPUTS = 3, 4, 3
LENGTHS = (6, 6, 5, 3, 3, 2)
NORMS = {
    "none": None,
    "batch": BatchNorm(gamma=0.7, eps=1e-2, min_rows=2),
    "joint": BatchNorm(input=None, recurrent=None, joint="frame", eps=1e-2, min_rows=2),
    "layer": LayerNorm(eps=1e-2),
}


class StraightThrough(torch.autograd.Function):
    """A step in the forward pass, nothing in the backward pass."""

    @staticmethod
    def forward(ctx, probability):
        return (probability > 0.5).to(probability.dtype)

    @staticmethod
    def backward(ctx, grad):
        return grad


def normaliser(module, norm):
    def normalise(site, z):
        field = site.split("_")[0]
        if not getattr(norm, field, None):
            return z
        over = 0 if isinstance(norm, BatchNorm) else 1
        var = z.var(over, keepdim=True, unbiased=False)
        z = (z - z.mean(over, keepdim=True)) / (var + norm.eps).sqrt()
        z = z * getattr(module, f"gamma_{site}")
        return z + getattr(module, f"beta_{site}") if field == "cell" else z

    return normalise


def definition(module, norm, sequences, boundary="step", slope=1.0, by_cases=False):
    """Outputs, boundaries and final states of sequences that are sorted by length."""
    W, normalise = module.get_parameter, normaliser(module, norm)
    rows = len(sequences)
    h, c = ([torch.zeros(rows, H, dtype=torch.float64) for _ in range(L)] for _ in range(2))
    z = [torch.zeros(rows, 1, dtype=torch.float64) for _ in range(L)]
    outputs, found = [[] for _ in sequences], [[] for _ in sequences]
    for t in range(len(sequences[0])):
        n = sum(len(s) > t for s in sequences)
        below, z_below = torch.stack([s[t] for s in sequences[:n]]), torch.ones(n, 1).double()
        # the last inputs of a frame may be its boundaries
        below, given = below.split(
            [INPUTS - L + 1, L - 1] if boundary == "given" else [INPUTS, 0], 1
        )
        old_h, old_c, old_z = ([part[:n] for part in parts] for parts in (h, c, z))
        new = []
        for k in range(L):
            s = z_below * normalise(f"input_l{k}", below @ W(f"weight_ih_l{k}").T)
            s = s + normalise(f"recurrent_l{k}", old_h[k] @ W(f"weight_hh_l{k}").T)
            if k < L - 1:
                above = normalise(f"recurrent_above_l{k}", old_h[k + 1] @ W(f"weight_ah_l{k}").T)
                s = s + old_z[k] * above
            s = normalise(f"joint_l{k}", s) + W(f"bias_l{k}")
            i, f, o = (s[:, a * H : (a + 1) * H].sigmoid() for a in (0, 1, 3))
            g = s[:, 2 * H : 3 * H].tanh()
            update, flush = f * old_c[k] + i * g, i * g
            if by_cases:
                kept = torch.where(z_below == 1, update, old_c[k])
                c_k = torch.where(old_z[k] == 1, flush, kept)
                moves = (old_z[k] == 1) | (z_below == 1)
                h_k = torch.where(moves, o * normalise(f"cell_l{k}", c_k).tanh(), old_h[k])
            else:
                copies = (1 - old_z[k]) * (1 - z_below)
                c_k = old_z[k] * flush + (1 - old_z[k]) * z_below * update + copies * old_c[k]
                h_k = copies * old_h[k] + (1 - copies) * o * normalise(f"cell_l{k}", c_k).tanh()
            z_k = torch.zeros(n, 1).double()
            if k < L - 1 and boundary == "given":
                z_k = given[:, k : k + 1]
            elif k < L - 1:
                z_k = ((slope * s[:, 4 * H :] + 1) / 2).clamp(0, 1)
                z_k = z_k if boundary == "soft" else StraightThrough.apply(z_k)
            new.append((h_k, c_k, z_k))
            below, z_below = h_k, z_k
        now = torch.cat([h_k for h_k, _, _ in new], 1)
        gates = (now @ W("weight_go").T).sigmoid()
        W_o = W("weight_ho").split(H, 1)
        output = sum(gates[:, k : k + 1] * (new[k][0] @ W_o[k].T) for k in range(L)).relu()
        for b in range(n):
            outputs[b].append(output[b])
            found[b].append(torch.cat([z_k[b] for _, _, z_k in new[:-1]]))
        for k in range(L):
            for part, fresh in zip((h, c, z), new[k], strict=True):
                part[k] = torch.cat([fresh, part[k][n:]])
    states = torch.stack(h), torch.stack(c), torch.stack(z[:-1]).squeeze(2)
    return [torch.stack(o) for o in outputs], [torch.stack(o) for o in found], states


def draw(norm=None, num_layers=L, **options):
    torch.manual_seed(3)
    module = rnnorm.HMLSTM(
        INPUTS, H, num_layers, norm=norm, initial_noise=0.0, dtype=torch.float64, **options
    )
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "gamma" in name:
                parameter.uniform_(0.5, 1.0)
            elif "beta" in name:
                parameter.normal_()
            else:
                parameter.mul_(2)
    return module


def sequences():
    torch.manual_seed(4)
    return [torch.randn(n, INPUTS).double().requires_grad_() for n in LENGTHS]


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


def test_a_compiled_stack_takes_packed_sequences():
    module = draw().eval()
    packed = pack_padded_sequence(
        torch.randn(5, 3, INPUTS).double(), [2, 5, 3], enforce_sorted=False
    )
    output, states, boundaries = module(packed)
    again, same, found = torch.compile(module, backend="eager")(packed)
    for one, two in zip((output, *boundaries), (again, *found), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(states, same, strict=True))


def test_weights_have_torchs_names_and_one_row_for_the_boundary():
    module = rnnorm.HMLSTM(INPUTS, H, 2, norm="batch", learn_initial_state=True)
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert {n: s for n, s in shapes.items() if n.startswith(("weight", "bias", "h", "z"))} == {
        "weight_ih_l0": (17, 3),
        "weight_hh_l0": (17, 4),
        "weight_ah_l0": (17, 4),
        "bias_l0": (17,),
        "weight_ih_l1": (16, 4),
        "weight_hh_l1": (16, 4),
        "bias_l1": (16,),
        "weight_go": (2, 8),
        "weight_ho": (4, 8),
        "h_0": (1, 8),
        "z_0": (1, 1),
    }
    assert shapes["gamma_recurrent_above_l0"] == (17,)
    assert shapes["beta_cell_l1"] == (4,)


def test_the_slope_is_set_and_kept_in_the_state():
    module = draw(slope=2)
    assert module.slope == 2.0
    assert repr(module).endswith("slope=2)")
    assert "slope" not in repr(draw())
    assert rnnorm.HMLSTM(INPUTS, H, slope=1.1, dtype=torch.float64).slope == 1.1
    module.slope = 3.5
    other = draw()
    other.load_state_dict(module.state_dict())
    assert other.slope == 3.5
    for same in (copy.deepcopy(other), pickle.loads(pickle.dumps(other))):
        assert same.slope == 3.5
    module.reset_parameters()
    assert module.slope == 2.0
    empty = rnnorm.HMLSTM(INPUTS, H, slope=1.5, device="meta").to_empty(device="cpu")
    empty.reset_parameters()
    assert empty.slope == 1.5
    with pytest.raises(ValueError, match="slope must be finite and at least 0, got -1"):
        module.slope = -1


def test_one_layer_finds_no_boundary():
    module = rnnorm.HMLSTM(INPUTS, H, 1)
    output, (h_n, _, z_n), boundaries = module(torch.randn(5, 2, INPUTS))
    assert output.shape == (5, 2, H)
    assert h_n.shape == (1, 2, H)
    assert z_n.shape == (0, 2)
    assert boundaries.z.shape == (5, 2, 0)


def test_what_does_not_fit_is_an_error():
    with pytest.raises(
        ValueError, match="boundary must be 'step', 'soft', 'sample' or 'given', got"
    ):
        rnnorm.HMLSTM(INPUTS, H, boundary="hard")
    with pytest.raises(ValueError, match=r"input_size must be at least .* got 2 and 3"):
        rnnorm.HMLSTM(2, H, boundary="given")
    mask = rnnorm.SequenceDropout(input=0.5)
    with pytest.raises(ValueError, match=r"recurrent_dropout.input must be 0 .* got 0.5"):
        rnnorm.HMLSTM(INPUTS, H, boundary="given", recurrent_dropout=mask)
    with pytest.raises(ValueError, match=r"norm.input must be 'frame' or None for HMLSTM"):
        rnnorm.HMLSTM(INPUTS, H, norm="bn-e*")
    with pytest.raises(ValueError, match=r"norm.carry must be None for HMLSTM"):
        rnnorm.HMLSTM(INPUTS, H, norm="carry")
    module, x = draw(), torch.zeros(5, 2, INPUTS).double()
    h = x.new_zeros(L, 2, H)
    with pytest.raises(RuntimeError, match=r"hx must be h and c of size \(3, B, 4\) and z"):
        module(x, (h, h, h))
    with pytest.raises(RuntimeError, match="hx must be h, c and z, got 2 tensors"):
        module(x, (h, h))
    for wrong in (5, "abc", (h, h, 3)):
        with pytest.raises(RuntimeError, match="hx must be h, c and z, got"):
            module(x, wrong)
    with pytest.raises(RuntimeError, match="input_size"):
        module(x[..., :2])


def test_it_is_exported():
    module, x = draw(NORMS["batch"], num_layers=2), torch.randn(2, 5, INPUTS).double()
    module(x)
    module.eval()
    program = torch.export.export(module, (x,), strict=False)
    for mine, theirs in zip(program.module()(x)[1], module(x)[1], strict=True):
        torch.testing.assert_close(mine, theirs)


def test_weights_are_drawn_gate_by_gate():
    module = rnnorm.init.orthogonal_(rnnorm.HMLSTM(INPUTS, H))
    for name in ("weight_hh_l2", "weight_ah_l0"):
        for gate in module.get_parameter(name)[: 4 * H].split(H):
            torch.testing.assert_close(gate @ gate.T, torch.eye(H))


def test_autocast_runs_it():
    module = rnnorm.HMLSTM(INPUTS, H, norm="batch")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, (h_n, _, _), boundaries = module(torch.randn(4, 5, INPUTS))
    assert output.dtype == h_n.dtype == boundaries.z.dtype
    output.float().sum().backward()
    assert module.weight_hh_l1.grad.dtype == torch.float32


def test_the_gradient_of_its_states_is_measured():
    norms = gradient_norms(
        rnnorm.HMLSTM(INPUTS, H), lambda result: result[0].sum(), torch.randn(4, 5, INPUTS)
    )
    assert norms.shape == (4,)
    assert norms.any()


def test_no_row_and_one_row_run():
    module = draw()
    for rows in (0, 1):
        output, (h_n, _, z_n), _ = module(torch.zeros(2, rows, INPUTS).double())
        assert output.shape == (2, rows, H)
        assert (h_n.shape, z_n.shape) == ((L, rows, H), (L - 1, rows))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_layer_normalised_stack_is_traced():
    layer = rnnorm.HMLSTM(3, 4, norm="layer").eval()
    x, other = torch.randn(2, 5, 2, 3)
    traced = torch.jit.trace(layer, (x,), check_trace=False)
    torch.testing.assert_close(traced(other)[0], layer(other)[0])
