"""Users' cells, compiled for the CPU kernel at their first call, beside the reference."""

import copy
import logging
import pickle

import pytest
import torch
from compiled_cells import CELLS, NORMS, Leaky, OwnGRU, OwnLSTM, ThreeStates, draw, layer
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

import rnnorm
from rnnorm import Zoneout
from rnnorm.kernels import dispatch, own_cell
from rnnorm.kernels.cpu import backward, compiler, forward, library
from rnnorm.kernels.cpu.c_struct import MULTIPLIED
from rnnorm.layers.call import short_call

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiling")]


def cases():
    for kind in CELLS:
        for norm in NORMS:
            # the joint site of an MIRNN is not a sum of terms
            joint = "joint" in CELLS[kind]().sites and kind != "mirnn"
            if norm.startswith("joint") and not joint:
                continue
            if norm == "carry" and kind != "lstm":
                continue
            yield pytest.param(kind, norm, id=f"{kind}-{norm}")


def run(model, x, backend, **given):
    """Return a call's results, and gradients of x and of all parameters."""
    model = copy.deepcopy(model)
    x = x.clone().requires_grad_()
    torch.manual_seed(1)
    before = dispatch.calls[backend]
    if backend == "reference":
        with rnnorm.use_backend(backend):
            output, state = model(x, **given)
    else:
        output, state = model(x, **given)
    assert dispatch.calls[backend] == before + 1
    results = [output, *(state if isinstance(state, tuple) else (state,))]
    generator = torch.Generator().manual_seed(2)
    weights = [torch.randn(r.shape, generator=generator, dtype=torch.float64) for r in results]
    loss = sum((r * w).sum() for r, w in zip(results, weights, strict=True))
    grads = torch.autograd.grad(loss, [x, *model.parameters()], allow_unused=True)
    names = ["x", *dict(model.named_parameters())]
    buffers = dict(model.named_buffers())
    return dict(enumerate(results)) | dict(zip(names, grads, strict=True)) | buffers


def compare(model, x, **given):
    mine, reference = run(model, x, "cpu", **given), run(model, x, "reference", **given)
    for name, value in reference.items():
        if value is None:
            assert mine[name] is None, name
            continue
        scale = max(1.0, value.abs().max().item())
        torch.testing.assert_close(
            mine[name], value, rtol=0, atol=1e-12 * scale, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize(("kind", "norm"), [*cases()])
def test_values_gradients_and_statistics_are_those_of_the_reference(kind, norm):
    compare(layer(kind, NORMS[norm]), draw(5, 4, 3))


def test_a_state_that_the_normalised_one_and_h_read():
    compare(
        rnnorm.Recurrent(ThreeStates(), 3, 18, norm="layer", dtype=torch.float64), draw(5, 4, 3)
    )


@pytest.mark.parametrize("kind", CELLS)
def test_evaluation_without_gradients(kind):
    # states then replace those of the step before
    model, x = layer(kind, "layer").eval(), draw(6, 4, 3)
    with torch.no_grad():
        output, state = model(x, lengths=[6, 2, 5, 2])
        with rnnorm.use_backend("reference"):
            wanted = model(x, lengths=[6, 2, 5, 2])
    torch.testing.assert_close((output, state), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", CELLS)
def test_rows_of_different_lengths(kind):
    compare(layer(kind, "batch", num_layers=2), draw(6, 4, 3), lengths=[6, 2, 5, 2])


@pytest.mark.parametrize("kind", CELLS)
def test_rows_that_begin_anew(kind):
    compare(layer(kind, "layer"), draw(6, 4, 3), reset=draw(6, 4) > 0.5)


@pytest.mark.parametrize("kind", CELLS)
def test_evaluation_by_the_population(kind):
    model = layer(kind, "batch")
    model(draw(5, 8, 3))
    compare(model.eval(), draw(7, 4, 3))


@pytest.mark.parametrize(
    ("kind", "site"), [("two", "recurrent_gates"), ("reset", "recurrent"), ("gru", "input")]
)
def test_populations_with_statistics_of_other_numbers_of_steps(kind, site):
    model = layer(kind, "batch")
    model(draw(5, 8, 3))
    model.get_submodule(f"population_{site}_l0").resize(2)
    compare(model.eval(), draw(7, 4, 3))


@pytest.mark.parametrize("kind", ["lstm", "gru", "mingru", "two", "reset"])
def test_recurrent_dropout(kind):
    for spec in (
        Zoneout(hidden=0.3, cell=0.2 if "zoneout_c" in CELLS[kind]().dropouts else 0.0),
        rnnorm.CellDropout(p=0.4),
        *[rnnorm.SequenceDropout(hidden=0.3)] * ("hidden" in CELLS[kind]().dropouts),
    ):
        compare(layer(kind, "layer", recurrent_dropout=spec), draw(5, 4, 3))


@pytest.mark.parametrize("kind", CELLS)
def test_states_without_biases_and_both_directions(kind):
    model = layer(kind, bias=False, bidirectional=True)
    states = tuple(0.3 * draw(2, 4, model.hidden_size).abs() for _ in model.cell.states)
    compare(model, draw(5, 4, 3), hx=states if len(states) > 1 else states[0])


@pytest.mark.parametrize(
    ("kind", "norm"), [*[(kind, "layer") for kind in CELLS], ("lstm", "joint")]
)
def test_gradcheck_and_the_second_derivative(kind, norm):
    units = 4 if kind == "slstm" else 3
    model = rnnorm.Recurrent(CELLS[kind](), 2, units, norm=NORMS[norm], dtype=torch.float64)
    x = draw(3, 2, 2).requires_grad_()
    names = list(dict(model.named_parameters()))

    def call(x, *parameters):
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(model, given, (x,))[0]

    before = dispatch.calls["cpu"]
    assert torch.autograd.gradcheck(call, (x, *model.parameters()))
    assert dispatch.calls["cpu"] > before
    assert torch.autograd.gradgradcheck(call, (x, *model.parameters()), atol=1e-4)


@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
@pytest.mark.parametrize("kind", ["two", "reset", "lstm", "peephole", "mirnn", "milstm"])
def test_a_weight_changed_in_place_before_backward_is_noticed(kind, norm):
    model = layer(kind, NORMS[norm])
    for name, parameter in model.named_parameters():
        if name.startswith(("bias", "beta")):
            # nothing that is only added is saved by the reference
            continue
        output, _ = model(draw(5, 4, 3))
        with torch.no_grad():
            parameter.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()


def test_a_recurrent_vector_that_the_step_reads_once_more():
    class ReadTwice(rnnorm.Cell):
        sites = ("input", "recurrent")

        def weights(self, input_size, hidden_size, bias):
            shapes = {"weight_ih": (hidden_size, input_size)}
            return shapes | dict.fromkeys(("a", "u", "b"), (hidden_size,))

        def units(self, weights):
            return weights.own["u"].size(0)

        def step(self, weights, x_term, state, normalise, t):
            a, u, b = (weights.own[name] for name in "aub")
            z = x_term + normalise("recurrent", u * state[0])
            h = a * torch.tanh(b * z + u)
            return h, (h,)

    for norm in (None, "batch"):
        options = {"dtype": torch.float64, "initial_noise": 0.0}
        model = rnnorm.Recurrent(ReadTwice(), 3, 18, norm=norm, **options)
        model(draw(5, 8, 3))
        for each in (model.train(), model.eval()):
            compare(each, draw(5, 4, 3))


def test_a_first_call_within_a_checkpoint():
    model, x = layer("reset", "layer"), draw(5, 4, 3).requires_grad_()
    output, _ = checkpoint(model, x, use_reentrant=False)
    (found,) = torch.autograd.grad(output.sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad(model(x)[0].sum(), x)[0])


def shifted(**biases):
    """Return a GRU of other biases, whose equations are compiled as those of OwnGRU."""

    class Shifted(OwnGRU):
        def shifts(self, weights, sites):
            return {site: bias(weights) for site, bias in biases.items()}

    return Shifted


class OneSum(OwnGRU):
    shifts = rnnorm.Cell.shifts


BIASES = {
    "as the kernel": OwnGRU,
    "one sum": OneSum,
    "twice": shifted(input=lambda w: 2 * w.bias_ih, recurrent=lambda w: w.bias_hh),
    "one": shifted(input=lambda w: w.bias_ih),
    "swapped": shifted(input=lambda w: w.bias_hh, recurrent=lambda w: w.bias_ih),
    "none": shifted(),
}


@pytest.mark.parametrize("norm", [None, "batch"])
@pytest.mark.parametrize("biases", BIASES)
def test_biases_are_added_where_the_cell_adds_them(biases, norm, monkeypatch):
    torch.manual_seed(0)
    model = rnnorm.Recurrent(
        BIASES[biases](), 3, 20, norm=norm, dtype=torch.float64, initial_noise=0.0
    )
    model(draw(5, 8, 3))
    found = []
    run = short_call._run

    def record(*given, **more):
        found.append(run(*given, **more))
        return found[-1]

    monkeypatch.setattr(short_call, "_run", record)
    for each in (model.train(), model.eval()):
        compare(each, draw(5, 4, 3))
    assert {result is not None for result in found} == {biases == "as the kernel"}


def test_biases_that_change_are_seen():
    factor = [1.0]
    cell = shifted(input=lambda w: w.bias_ih if factor[0] == 1 else factor[0] * w.bias_ih)()
    model = rnnorm.Recurrent(cell, 3, 20, dtype=torch.float64, initial_noise=0.0)
    for factor[0] in (1.0, 2.0):
        compare(model, draw(5, 4, 3))


def test_a_cell_of_an_lstms_equations_is_an_lstm():
    mine = layer("lstm", "batch")
    theirs = rnnorm.LSTM(3, 18, norm="batch", dtype=torch.float64, initial_noise=0.0)
    theirs.load_state_dict(mine.state_dict())
    for a, b in zip(mine(draw(5, 4, 3)), theirs(draw(5, 4, 3)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


def test_a_cell_is_right_with_the_options_of_users_cells(compiling, monkeypatch):
    monkeypatch.setattr(compiler, "_sources", compiling)
    model, x = layer("leaky", "layer", dtype=torch.float32), draw(5, 4, 3).float()
    mine, reference = (run(model, x, backend) for backend in ("cpu", "reference"))
    torch.testing.assert_close(mine, reference)


def test_autocast_and_half_types():
    model = layer("leaky", dtype=torch.float32)
    x = draw(5, 4, 3).float()
    want, _ = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, _ = model(x)
    torch.testing.assert_close(found.float(), want, rtol=0, atol=3e-2)
    narrow, _ = copy.deepcopy(model).bfloat16()(x.bfloat16())
    # all but the matrices and x is of float32 under autocast
    torch.testing.assert_close(found, narrow, rtol=0, atol=1e-2)
    name = own_cell.graph_of(model.cell).option
    assert library.own_multiplies_bfloat16(name) == library.multiplies_bfloat16()
    for dtype in (torch.bfloat16, torch.float16):
        before = dispatch.calls["cpu"]
        assert model.to(dtype)(x.to(dtype))[0].dtype == dtype
        assert dispatch.calls["cpu"] == before + 1


@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
@pytest.mark.parametrize("kind", ["lstm", "gru", "leaky", "prepared", "two", "sru", "slstm"])
def test_products_of_bfloat16(kind, norm):
    options = {"lengths": [6, 6, 3, 1]} if norm == "layer" else {}
    model = layer(kind, NORMS[norm], dtype=torch.bfloat16)
    x = draw(6, 4, 3).bfloat16()
    exact = run(copy.deepcopy(model).double(), x.double(), "reference", **options)
    found = run(model, x, "cpu", **options)
    name = own_cell.graph_of(model.cell).option
    in_pairs = kind != "slstm" and library.multiplies_bfloat16()
    assert library.own_multiplies_bfloat16(name) == in_pairs
    for key, want in exact.items():
        scale = want.double().square().mean().sqrt() + 1e-2
        error = (found[key].double() - want.double()).square().mean().sqrt() / scale
        assert error < 0.06, key


class FourHeads(OwnLSTM):
    heads = 4


def four_heads(units, norm=None):
    torch.manual_seed(0)
    options = {"dtype": torch.bfloat16, "initial_noise": 0.0}
    return rnnorm.Recurrent(FourHeads(), 3, units, norm=norm, **options)


@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
def test_heads_of_whole_factors_are_multiplied_in_bfloat16(norm, monkeypatch):
    numbers, call = [], library.run

    def spy(name, struct, *exchange):
        numbers.append(struct.numbers)
        return call(name, struct, *exchange)

    for module in (forward, backward):
        monkeypatch.setattr(module, "run", spy)
    options = {"lengths": [7, 7, 4, 2, 2]}
    x = draw(7, 5, 3).bfloat16()
    for units in (4 * 32, 4 * 64, 4 * 33):
        model = four_heads(units, NORMS[norm])
        exact = run(copy.deepcopy(model).double(), x.double(), "reference", **options)
        numbers.clear()
        found = run(model, x, "cpu", **options)
        in_pairs = units % 128 == 0 and library.multiplies_bfloat16()
        assert set(numbers) == {MULTIPLIED.index(torch.bfloat16 if in_pairs else torch.float32)}
        for key, want in exact.items():
            scale = want.double().square().mean().sqrt() + 1e-2
            error = (found[key].double() - want.double()).square().mean().sqrt() / scale
            assert error < 0.06, (units, key)


def test_an_infinite_head_leaves_the_others_as_they_are():
    model, x = four_heads(4 * 32).eval(), draw(3, 4, 3).bfloat16()
    h, c = torch.zeros(2, 1, 4, 4 * 32, dtype=torch.bfloat16)
    want, _ = model(x, (h, c))
    h[..., 32:64] = torch.inf
    found, _ = model(x, (h, c))
    assert found[..., 32:64].isnan().any()
    assert torch.equal(found[..., :32], want[..., :32])
    assert torch.equal(found[..., 64:], want[..., 64:])


def test_torch_compile_leaves_the_kernel_out_of_its_graph():
    model, x = layer("leaky").eval(), draw(5, 4, 3)
    want, _ = model(x)
    before = dispatch.calls["cpu"]
    torch._dynamo.reset()
    found, _ = torch.compile(model, backend="eager")(x)
    torch.testing.assert_close(found, want, rtol=0, atol=0)
    assert dispatch.calls["cpu"] > before
    assert rnnorm.explain(model, x).kernel == "cpu"


def test_copies_share_what_was_compiled(caplog):
    model = layer("leaky")
    model(draw(2, 2, 3))
    caplog.clear()
    with caplog.at_level(logging.WARNING, "rnnorm"):
        copy.deepcopy(model)(draw(2, 2, 3))
        pickle.loads(pickle.dumps(model))(draw(2, 2, 3))
        layer("leaky", "layer")(draw(2, 2, 3))
    assert not caplog.records


@pytest.mark.parametrize("name", ["weight_hh_l0", "rate_l0"])
def test_a_parametrized_weight(name):
    model = layer("leaky", "layer")
    parametrize.register_parametrization(model, name, torch.nn.Tanh())
    compare(model, draw(5, 4, 3))
    compare(model, draw(5, 4, 3), lengths=[5, 3, 3, 1])


class LowRank(Leaky):
    """A leaky cell whose recurrent matrix is a product of two narrow ones."""

    def weights(self, input_size, hidden_size, bias):
        shapes = super().weights(input_size, hidden_size, bias)
        del shapes["weight_hh"]
        return shapes | {"u": (hidden_size, 2), "v": (2, hidden_size)}

    def units(self, weights):
        return weights.own["u"].size(0)

    def prepare(self, weights):
        return weights._replace(weight_hh=weights.own["u"] @ weights.own["v"])


@pytest.mark.parametrize("norm", [None, "batch", "layer"])
def test_a_recurrent_matrix_that_prepare_makes_of_others(norm):
    model = rnnorm.Recurrent(LowRank(), 3, 18, norm=norm, dtype=torch.float64, initial_noise=0.0)
    compare(model, draw(5, 9, 3))
    compare(model, draw(5, 9, 3), lengths=[5, 5, 5, 5, 5, 5, 3, 3, 1])


class Kept(rnnorm.Cell):
    """A cell whose candidate has no bounds."""

    gates = (2,)

    def step(self, weights, x_term, state, normalise, t):
        (h,) = state
        z, n = self.preactivation(weights, x_term, h, normalise).chunk(2, 1)
        h = torch.lerp(n, h, torch.sigmoid(z))
        return h, (h,)


def test_a_small_state_is_kept_beside_a_large_candidate():
    model = rnnorm.Recurrent(Kept(), 1, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight_ih_l0.copy_(torch.tensor([[50.0], [1e12]], dtype=torch.float64))
        model.weight_hh_l0.zero_()
    h = torch.full((1, 2, 1), 0.1, dtype=torch.float64)
    x = torch.tensor([1.0, -1.0], dtype=torch.float64).view(1, 2, 1)
    before = dispatch.calls["cpu"]
    _, h_n = model(x, h)
    assert dispatch.calls["cpu"] == before + 1
    # the gate is at one end, then at the other
    torch.testing.assert_close(h_n.flatten(), x.new_tensor([0.1, -1e12]), rtol=1e-9, atol=0)
