"""Recurrent: layers of a cell that a user wrote."""

import copy
import pickle
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import rnnorm
from own_cell import IndRNN, LiGRU


@dataclass(frozen=True)
class Leaky(rnnorm.Cell):
    """A tanh cell with a trace beside h, three units wide, and an option."""

    keep: float = 0.5
    states = ("h", "trace")
    sites = ("input", "recurrent", "cell")

    def state_sizes(self, hidden_size):
        return hidden_size, 3

    def step(self, weights, x_term, state, normalise, t):
        h, trace = state
        h = normalise("recurrent", self.product(h, weights.weight_hh)) + x_term
        h = torch.tanh(normalise("cell", h))
        return h, (h, self.keep * trace + h[:, :3])


class Frames(rnnorm.Cell):
    """Does its own input product."""

    reads_frames = True

    def step(self, weights, x_term, state, normalise, t):
        x_term = normalise("input", self.product(x_term, weights.weight_ih))
        h = torch.tanh(self.preactivation(weights, x_term, state[0], normalise))
        return h, (h,)


@dataclass(frozen=True)
class Heads(rnnorm.Cell):
    """Two gates, whose units read the h of their own head alone."""

    heads: int = 1
    gates = (2,)

    def step(self, weights, x_term, state, normalise, t):
        (h,) = state
        z, n = self.preactivation(weights, x_term, h, normalise).chunk(2, 1)
        h = torch.lerp(torch.tanh(n), h, torch.sigmoid(z))
        return h, (h,)


def layer(cell, *arguments, **options):
    torch.manual_seed(0)
    return rnnorm.Recurrent(cell, *arguments, dtype=torch.float64, **options)


def test_a_cell_of_an_rnns_equations_is_an_rnn():
    class Elman(rnnorm.Cell):
        def step(self, weights, x_term, state, normalise, t):
            h = torch.tanh(self.preactivation(weights, x_term, state[0], normalise))
            return h, (h,)

    options = {"num_layers": 2, "bidirectional": True, "batch_first": True, "norm": "batch"}
    mine = layer(Elman(), 3, 4, **options, initial_noise=0.0)
    theirs = rnnorm.RNN(3, 4, **options, initial_noise=0.0, dtype=torch.float64)
    theirs.load_state_dict(mine.state_dict())
    assert list(mine.state_dict()) == list(theirs.state_dict())
    assert mine.all_weights[3][0] is mine.weight_ih_l1_reverse
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    for a, b in zip(mine(x), theirs(x), strict=True):
        torch.testing.assert_close(a, b)


def test_weights_are_those_that_the_cell_names():
    ind = layer(IndRNN(), 3, 4, num_layers=2, bias=False)
    shapes = {name: tuple(p.shape) for name, p in ind.named_parameters()}
    assert shapes == {"weight_ih_l0": (4, 3), "u_l0": (4,), "weight_ih_l1": (4, 4), "u_l1": (4,)}
    assert all(0 < p.abs().max() <= 0.5 for p in ind.parameters())
    before = copy.deepcopy(ind.state_dict())
    ind.reset_parameters()
    assert not torch.equal(ind.u_l0, before["u_l0"])
    ind.load_state_dict(before)


class Named(rnnorm.Cell):
    """An Elman cell none of whose weights has a name of torch's."""

    reads_frames = True
    sites = ("input", "recurrent")

    def weights(self, input_size, hidden_size, bias):
        return {"w": (hidden_size, input_size), "u": (hidden_size, hidden_size)}

    def units(self, weights):
        return weights.own["u"].size(1)

    def step(self, weights, x_term, state, normalise, t):
        x_term = normalise("input", self.product(x_term, weights.own["w"]))
        h_term = normalise("recurrent", self.product(state[0], weights.own["u"]))
        h = torch.tanh(x_term + h_term)
        return h, (h,)


def test_a_cell_needs_no_weight_of_torchs_name():
    options = {"num_layers": 2, "norm": "batch", "initial_noise": 0.0, "bias": False}
    mine = layer(Named(), 3, 4, **options)
    theirs = rnnorm.RNN(3, 4, **options, dtype=torch.float64)
    names = {"weight_ih": "w", "weight_hh": "u"}
    for name, value in theirs.named_parameters():
        kind, _, suffix = name.rpartition("_l")
        getattr(mine, f"{names.get(kind, kind)}_l{suffix}").data.copy_(value.data)
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    torch.testing.assert_close(mine(x), theirs(x))
    torch.testing.assert_close(rnnorm.freeze(mine)(x), rnnorm.freeze(theirs)(x))


def test_states_have_the_cells_widths_and_names():
    leaky = layer(Leaky(), 3, 4, num_layers=2, bidirectional=True, learn_initial_state=True)
    assert leaky.h_0.shape == (4, 4)
    assert leaky.trace_0.shape == (4, 3)
    assert not leaky.trace_0.any()
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    output, (h_n, trace) = leaky(x)
    assert output.shape == (5, 6, 8)
    assert (h_n.shape, trace.shape) == ((4, 6, 4), (4, 6, 3))
    unbatched, (h_1, trace_1) = leaky(x[:, 0])
    torch.testing.assert_close(unbatched, output[:, 0])
    torch.testing.assert_close(trace_1, trace[:, 0])
    leaky(x[:, 0], (h_1, trace_1))


def test_a_learned_state_is_trained_and_reset():
    leaky = layer(Leaky(), 3, 4, learn_initial_state=True)
    output, (_, trace) = leaky(torch.randn(5, 6, 3, dtype=torch.float64))
    (output.sum() + trace.sum()).backward()
    assert leaky.h_0.grad.any()
    assert leaky.trace_0.grad.any()
    nn.init.ones_(leaky.trace_0)
    leaky.reset_parameters()
    assert not leaky.trace_0.any()


@pytest.mark.parametrize("norm", ["batch", "layer", None])
def test_a_cell_that_reads_frames_is_as_one_that_gets_the_input_term(norm):
    torch.manual_seed(0)
    options = {"norm": norm, "initial_noise": 0.0, "dtype": torch.float64}
    mine, theirs = rnnorm.Recurrent(Frames(), 3, 4, **options), rnnorm.RNN(3, 4, **options)
    theirs.load_state_dict(mine.state_dict())
    x, lengths = torch.randn(5, 6, 3, dtype=torch.float64), [5, 5, 4, 4, 3, 2]
    for a, b in zip(mine(x, lengths=lengths), theirs(x, lengths=lengths), strict=True):
        torch.testing.assert_close(a, b)


def test_a_scope_or_site_that_the_cell_lacks_is_an_error():
    with pytest.raises(ValueError, match=r"norm.input must be 'frame' or None for Frames"):
        layer(Frames(), 3, 4, norm="bn-e*")
    # another input term than W_x x is normalised step by step
    Two = type("Two", (rnnorm.Cell,), {"sites": ("input", "recurrent", "joint", "input_2")})
    with pytest.raises(ValueError, match=r"norm.input must be 'frame' or None for Two"):
        layer(Two(), 3, 4, norm="bn-e*")
    with pytest.raises(ValueError, match=r"norm.joint must be None for IndRNN"):
        layer(IndRNN(), 3, 4, norm="joint")
    with pytest.raises(ValueError, match=r"norm.carry must be None for Leaky"):
        layer(Leaky(), 3, 4, norm="carry")


def test_a_site_that_is_asked_for_late_serves_the_few_rows_that_are_left():
    class Late(rnnorm.Cell):
        sites = ("input", "recurrent", "joint", "recurrent_2")

        def step(self, weights, x_term, state, normalise, t):
            z = self.preactivation(weights, x_term, state[0], normalise)
            h = torch.tanh(normalise("recurrent_2", z) if t % 2 else z)
            return h, (h,)

    late = layer(Late(), 3, 4, norm="batch", initial_noise=0.0)
    x = torch.randn(6, 16, 3, dtype=torch.float64)
    late(x)
    output, _ = late(x, lengths=[6] * 4 + [1] * 12)
    output.sum().backward()
    assert output[1:, :4].all()


def test_a_step_asks_for_sites_that_the_cell_names():
    class Few(rnnorm.Cell):
        sites = ("input", "recurrent")

        def step(self, weights, x_term, state, normalise, t):
            h = self.preactivation(weights, x_term, state[0], normalise)
            return h, (h,)

    with pytest.raises(
        ValueError, match=r"Few.*\.sites must have 'joint', for which its step asks"
    ):
        layer(Few(), 3, 4)(torch.randn(5, 6, 3, dtype=torch.float64))


@pytest.mark.parametrize("norm", ["joint", "layer", "batch"])
def test_a_norm_at_a_site_for_which_no_step_asks_warns(norm):
    class Plain(rnnorm.Cell):
        def step(self, weights, x_term, state, normalise, t):
            h = torch.tanh(x_term + self.product(state[0], weights.weight_hh))
            return h, (h,)

    x = torch.randn(5, 6, 3, dtype=torch.float64)
    layer(Plain(), 3, 4)(x)
    site = "joint" if norm == "joint" else "recurrent"
    with pytest.warns(UserWarning, match=rf"Plain\.step has not asked for the site '{site}'"):
        layer(Plain(), 3, 4, norm=norm)(x)


def test_a_site_is_asked_for_once_a_step():
    class Twice(rnnorm.Cell):
        def step(self, weights, x_term, state, normalise, t):
            gate = normalise("recurrent", self.product(state[0], weights.weight_hh))
            gated = self.product(torch.sigmoid(gate) * state[0], weights.weight_hh)
            h = torch.tanh(x_term + normalise("recurrent", gated))
            return h, (h,)

    x = torch.randn(5, 6, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"Twice\.step must ask for the site 'recurrent' once"):
        layer(Twice(), 3, 4, norm="batch")(x)
    layer(Twice(), 3, 4, norm="layer")(x)


def test_what_is_no_cell_is_an_error():
    with pytest.raises(TypeError, match="cell must be an instance of a subclass"):
        rnnorm.Recurrent(LiGRU, 3, 4)
    with pytest.raises(TypeError, match=r"cell.gates must be a tuple .* got 4"):
        rnnorm.Recurrent(type("Many", (rnnorm.Cell,), {"gates": 4})(), 3, 4)
    with pytest.raises(NotImplementedError, match="Cell has no step"):
        rnnorm.Recurrent(rnnorm.Cell(), 3, 4)(torch.zeros(2, 5, 3))


@pytest.mark.parametrize(
    ("attributes", "error", "said"),
    [
        ({"gates": ()}, ValueError, r"cell\.gates must have at least one number.* got \(\)"),
        ({"gates": (2, 0)}, ValueError, r"each of cell\.gates must be at least 1, got 0"),
        ({"gates": (1.0,)}, TypeError, r"each of cell\.gates must be an int, got 1\.0"),
        ({"heads": 0}, ValueError, r"cell\.heads must be at least 1, got 0"),
        ({"states": ()}, ValueError, r"cell\.states must be different names, .* got \(\)"),
        ({"states": ("h", "h")}, ValueError, r"cell\.states must be .* got \('h', 'h'\)"),
        (
            {"state_sizes": lambda self, hidden_size: (hidden_size, 1)},
            ValueError,
            r"Wrong\.state_sizes must return a width for each state of h, got \(4, 1\)",
        ),
        (
            {"weights": lambda self, *sizes: {"weight_hh": (4, 4)}},
            ValueError,
            r"Wrong\.weights must have 'weight_ih', .* got weight_hh",
        ),
    ],
)
def test_a_cell_that_makes_no_layer_is_an_error(attributes, error, said):
    cell = type("Wrong", (rnnorm.Cell,), attributes)()
    with pytest.raises(error, match=said):
        rnnorm.Recurrent(cell, 3, 4)


@pytest.mark.parametrize(
    "returned",
    [
        lambda h: (h, h),
        lambda h: (h, (h, h)),
        lambda h: (h, (h[:, :2],)),
        lambda h: h,
        lambda h: (h, h, (h,)),
    ],
)
def test_a_step_that_returns_other_states_is_an_error(returned):
    class Mine(rnnorm.Cell):
        def step(self, weights, x_term, state, normalise, t):
            h = torch.tanh(self.preactivation(weights, x_term, *state, normalise))
            return returned(h)

    with pytest.raises(RuntimeError, match=r"Mine.step must return .* a tuple of its states \(h\)"):
        rnnorm.Recurrent(Mine(), 3, 4)(torch.zeros(1, 1, 3))


@pytest.mark.parametrize(
    ("output", "got"),
    [
        (lambda h: h[:1], r"\(1, 4\)"),
        (lambda h: h.sum(1), r"\(2,\)"),
        (lambda h: None, "NoneType"),
    ],
)
def test_an_output_of_other_rows_is_an_error(output, got):
    class Mine(rnnorm.Cell):
        def step(self, weights, x_term, state, normalise, t):
            h = torch.tanh(self.preactivation(weights, x_term, *state, normalise))
            return output(h), (h,)

    with pytest.raises(RuntimeError, match=rf"Mine\.step must return an output \(2, .* got {got}"):
        rnnorm.Recurrent(Mine(), 3, 4)(torch.zeros(3, 2, 3))


def test_a_state_that_does_not_fit_is_an_error():
    leaky = layer(Leaky(), 3, 4)
    x = torch.zeros(5, 6, 3, dtype=torch.float64)
    h, trace = x.new_zeros(1, 6, 4), x.new_zeros(1, 6, 3)
    for hx in ((h, h), (h[:, :5], trace)):
        with pytest.raises(RuntimeError, match=r"Expected hx \((h|trace)\) of size"):
            leaky(x, hx)
    for hx in ((h,), (h[0], trace[0])):
        with pytest.raises(RuntimeError, match="hx the states h and trace"):
            leaky(x, hx)


def test_it_runs_on_the_reference_alone():
    ligru = layer(LiGRU(), 3, 4, norm="batch")
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    with rnnorm.use_backend("reference"):
        ligru(x)
    for name in ("aten", "cpu"):
        if not rnnorm.backends()[name]:
            with (
                rnnorm.use_backend(name),
                pytest.raises(RuntimeError, match=f"'{name}' does not cover LiGRU"),
            ):
                ligru(x)


def test_a_cell_that_has_the_name_of_another_is_not_taken_for_it():
    class LSTM(Leaky):
        pass

    mine = layer(LSTM(), 3, 4, norm="batch")
    before = rnnorm.layers.sequence_layer.dispatch.calls["reference"]
    mine(torch.randn(5, 6, 3, dtype=torch.float64))
    assert rnnorm.layers.sequence_layer.dispatch.calls["reference"] == before + 1


def test_it_is_copied_pickled_and_shown():
    leaky = layer(Leaky(keep=0.25), 3, 4, norm="batch", batch_first=True)
    assert repr(leaky).startswith("Recurrent(\n  Leaky(keep=0.25), 3, 4, batch_first=True, norm=")
    ligru = layer(LiGRU(), 3, 4, norm="layer")
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    for other in (copy.deepcopy(ligru), pickle.loads(pickle.dumps(ligru))):
        torch.testing.assert_close(other(x)[0], ligru(x)[0])


def test_it_is_exported():
    ligru = layer(LiGRU(), 3, 4, norm="batch", initial_noise=0.0)
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    ligru(x)
    ligru.eval()
    program = torch.export.export(ligru, (x,), strict=False)
    torch.testing.assert_close(program.module()(x), ligru(x))


def test_a_compiled_layer_gives_the_same():
    ligru = layer(LiGRU(), 3, 4, norm="batch", initial_noise=0.0)
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    ligru(x)
    ligru.eval()
    torch.testing.assert_close(torch.compile(ligru, backend="eager")(x), ligru(x))


def test_outputs_have_autocasts_dtype():
    ligru = rnnorm.Recurrent(LiGRU(), 3, 4, norm="batch")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, h_n = ligru(torch.randn(5, 6, 3))
    assert output.dtype == h_n.dtype
    output.float().sum().backward()
    assert ligru.weight_hh_l0.grad.dtype == torch.float32


def test_update_bn_estimates_its_populations():
    ligru = layer(LiGRU(), 3, 4, norm="batch", initial_noise=0.0)
    x = torch.randn(5, 40, 3, dtype=torch.float64)
    rnnorm.update_bn([x], ligru)
    found, _ = ligru.eval()(x)
    # population variances are the unbiased ones
    torch.testing.assert_close(found, ligru.train()(x)[0], rtol=0.05, atol=0.01)


@pytest.mark.parametrize("site", ["memory", "recurent", "hidden_2"])
def test_a_site_that_no_norm_has_is_refused(site):
    class Misnamed(Leaky):
        sites = ("input", site)

    with pytest.raises(ValueError, match=f"sites must be of input, recurrent, .* got '{site}'"):
        layer(Misnamed(), 3, 4, norm="batch")


@pytest.mark.parametrize("norm", [None, "layer"])
def test_heads_are_blocks_of_one_recurrent_matrix(norm):
    heads, whole = layer(Heads(3), 4, 6, norm=norm), layer(Heads(), 4, 6, norm=norm)
    with torch.no_grad():
        for name, parameter in heads.named_parameters():
            if name == "weight_hh_l0":
                assert parameter.shape == (12, 2)
                gates = [torch.block_diag(*gate.chunk(3)) for gate in parameter.chunk(2)]
                whole.weight_hh_l0.copy_(torch.cat(gates))
            else:
                whole.get_parameter(name).copy_(parameter)
    x = torch.randn(5, 3, 4, dtype=torch.float64)
    found, expected = heads(x)[0], whole(x)[0]
    torch.testing.assert_close(found, expected)
    of_heads, of_whole = (
        torch.autograd.grad(output.square().sum(), one.weight_hh_l0)[0]
        for output, one in ((found, heads), (expected, whole))
    )
    blocks = [
        gate[2 * k : 2 * k + 2, 2 * k : 2 * k + 2] for gate in of_whole.chunk(2) for k in range(3)
    ]
    torch.testing.assert_close(of_heads, torch.cat(blocks))


def test_units_that_heads_cannot_share_are_refused():
    with pytest.raises(ValueError, match="multiple of the 3 heads of Heads, got 4"):
        layer(Heads(3), 4, 4)


def test_units_that_do_not_fit_a_norm_are_named():
    class Two(rnnorm.Cell):
        gates = (1, 1)
        sites = ("input",)

        def weights(self, input_size, hidden_size, bias):
            square = (hidden_size, hidden_size)
            return {"weight_ih": (2 * hidden_size, input_size), "weight_hh": square}

    layer = rnnorm.Recurrent(Two(), 3, 8, norm=rnnorm.LayerNorm(recurrent=False))
    said = r"Two\.units must return the number of units, got 4: the site 'input' has 16 columns"
    with pytest.raises(ValueError, match=said):
        layer(torch.randn(2, 3, 3))


@pytest.mark.parametrize(
    "reads",
    [lambda t: 2.0 if t == 0 else 1.0, int, torch.Tensor.item, lambda t: [2, 1, 1][t]],
    ids=["if", "int", "item", "index"],
)
def test_a_number_that_is_taken_out_of_ages_is_named(reads):
    class Aged(rnnorm.Cell):
        def step(self, weights, x_term, state, normalise, t):
            h = torch.tanh(reads(t) * x_term)
            return h, (h,)

    layer, x = rnnorm.Recurrent(Aged(), 3, 4), torch.randn(3, 2, 3)
    said = r"Aged\.step must not take a number out of t, which is int64 \(n, 1\)"
    with pytest.raises(RuntimeError, match=said):
        layer(x, reset=torch.eye(3, 2, dtype=torch.bool))


class Accumulator(rnnorm.Cell):
    """Adds to its state in place, which is also the output of the step before."""

    def step(self, weights, x_term, state, normalise, t):
        (h,) = state
        h += torch.tanh(x_term)
        return h, (h,)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_a_step_that_changes_its_states_in_place_is_refused(mode):
    layer = rnnorm.Recurrent(Accumulator(), 3, 4)
    said = r"Accumulator\.step must not change its states in place"
    with mode(), rnnorm.use_backend("reference"), pytest.raises(RuntimeError, match=said):
        layer(torch.randn(5, 2, 3))


class OneMore(rnnorm.Cell):
    """Has one weight more, under a name that a test chooses."""

    name_of_weight = "u"

    def weights(self, input_size, hidden_size, bias):
        shapes = super().weights(input_size, hidden_size, bias)
        return shapes | {self.name_of_weight: (hidden_size,)}


def test_bounds_of_a_weight_that_a_cell_lacks_are_refused():
    class Misspelt(OneMore):
        bounds = {"U": (0, 1)}  # noqa: RUF012

    said = r"cell\.bounds must be of the weights weight_ih, .*, u, got 'U'"
    with pytest.raises(ValueError, match=said):
        rnnorm.Recurrent(Misspelt(), 3, 4)

    class OfABias(OneMore):
        bounds = {"bias_ih": (0, 1)}  # noqa: RUF012

    assert rnnorm.Recurrent(OfABias(), 3, 4, bias=False).cell.bounds


@pytest.mark.parametrize("name", ["gamma_input", "beta_cell"])
def test_a_weight_with_the_name_of_a_norms_parameter_is_refused(name):
    class Taken(OneMore):
        name_of_weight = name
        sites = ("input", "cell")

    assert hasattr(rnnorm.Recurrent(Taken(), 3, 4), f"{name}_l0")
    with pytest.raises(ValueError, match=rf"Taken\.weights must not have the name '{name}'"):
        rnnorm.Recurrent(Taken(), 3, 4, norm="layer")
